-- Counts an event once a window and, if it is the first there, queues it for each receiver: both or neither.
--
-- KEYS  the claim, the receivers' queues (record -> when to send, in ms since 1970)
-- ARGV  the window in ms (0: the condition that the claim stands for has ended), record (empty: none), the time in ms, how many
--       events a queue has at most, for how many ms a queue is kept that nobody reads
-- Returns 0 where no queue had room: then the event is not counted and may be noticed again. Else 1.
local first
if ARGV[1] == '0' then
  first = redis.call('DEL', KEYS[1]) == 1 and ARGV[2] ~= ''
else
  first = redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1])
end
if not first then return 1 end
local queued = 0
for number = 2, #KEYS do
  if redis.call('ZCARD', KEYS[number]) < tonumber(ARGV[4]) then
    redis.call('ZADD', KEYS[number], ARGV[3], ARGV[2])
    redis.call('PEXPIRE', KEYS[number], ARGV[5])
    queued = 1
  end
end
if queued == 0 then redis.call('DEL', KEYS[1]) end
return queued
