-- Counts an event once a window and, if it is the first there, queues it: both or neither.
--
-- KEYS  the claim, the queue (record -> when to send, in ms since 1970)
-- ARGV  the window in ms (0: the condition that the claim stands for has ended), record (empty: none), the time in ms, how many
--       events the queue has at most
-- Returns 0 where the queue is full: then the event is not counted and may be noticed again. Else 1.
local first
if ARGV[1] == '0' then
  first = redis.call('DEL', KEYS[1]) == 1 and ARGV[2] ~= ''
else
  first = redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1])
end
if not first then return 1 end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
return 1
