-- Returns the number of queued events, and the records that are to be sent now. They are due again later, so that nobody else
-- sends them meanwhile, and somebody does where this process dies.
--
-- KEYS  the queue (record -> when to send, in ms since 1970)
-- ARGV  the time in ms, when the records are due again, how many records at most
local records = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, record in ipairs(records) do redis.call('ZADD', KEYS[1], ARGV[2], record) end
return { redis.call('ZCARD', KEYS[1]), records }
