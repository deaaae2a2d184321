-- Writes down how an attempt to send an event ended. An event that is not in the outbox any more stays out.
--
-- KEYS  the events (id -> record), their times, the list of those that were given up
-- ARGV  'sent', 'again' or 'given_up', id, record, in how many ms to try again, how many are kept that were given up
local events, due, given_up = KEYS[1], KEYS[2], KEYS[3]
local outcome, id, record = ARGV[1], ARGV[2], ARGV[3]
local before = redis.call('HGET', events, id)
if not before then return 0 end
if outcome == 'again' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', events, id, before:match('^%S* ') .. record)
  redis.call('ZADD', due, now + ARGV[4], id)
  return 1
end
redis.call('HDEL', events, id)
redis.call('ZREM', due, id)
if outcome == 'given_up' then
  redis.call('LPUSH', given_up, record)
  redis.call('LTRIM', given_up, 0, ARGV[5] - 1)
end
return 1
