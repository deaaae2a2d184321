-- Returns the number of events in the outbox, and the records that are to be sent now; false in place of them where another
-- process sends. Nothing is removed: an event stays until its delivery is reported.
--
-- KEYS  the lease of the process that sends, the events (id -> record), their times
-- ARGV  the name of this process, its lease in ms, how many records at most
local lease, events, due = KEYS[1], KEYS[2], KEYS[3]
local owner = redis.call('GET', lease)
if owner and owner ~= ARGV[1] then return { redis.call('HLEN', events), false } end
redis.call('SET', lease, ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local most, records = tonumber(ARGV[3]), {}
for _, id in ipairs(redis.call('ZRANGE', due, '-inf', now, 'BYSCORE', 'LIMIT', 0, 4 * most)) do
  local record = redis.call('HGET', events, id)
  local after = record and record:match('^(%S+) ')
  if not record then
    redis.call('ZREM', due, id)
  elseif after and redis.call('HEXISTS', events, after) == 1 then
    redis.call('ZADD', due, now + 1000, id)
  elseif #records < most then
    records[#records + 1] = record:sub(record:find(' ', 1, true) + 1)
  end
end
return { redis.call('HLEN', events), records }
