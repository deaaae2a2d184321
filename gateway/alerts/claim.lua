-- Counts an event once a window and, if it is the first there, puts it into the outbox: both or neither.
--
-- KEYS  the claim, the events of the outbox (id -> record), their times (id -> when to send, in ms)
-- ARGV  operation, level or member, end of the window (in ms since 1970; 0: none), id, record, and how many events the outbox has
--       at most
-- Operations:
--   'reach'  the claim is the highest level that was reached in the window
--   'begin'  the claim is the id of the event with which a condition began
--   'end'    that condition has ended: the event is sent after the one that it began with
--   'join'   the claim is a set of members, each with the time when it joined
--   'leave'  a member leaves the set, of which there is no event
-- Returns 1 where the event is put into the outbox, 0 where it was counted before, -1 where the outbox is full: then it is not
-- counted, except that a condition has ended.
local claim, events, due = KEYS[1], KEYS[2], KEYS[3]
local operation, value, window_end, id, record = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if operation == 'leave' then
  redis.call('ZREM', claim, value)
  return 0
end

local before = operation ~= 'join' and redis.call('GET', claim)
if operation == 'reach' and before and tonumber(before) >= tonumber(value) then return 0 end
if operation == 'begin' and before then return 0 end
if operation == 'end' and not before then return 0 end
if operation == 'join' and redis.call('ZSCORE', claim, value) then return 0 end

if operation == 'end' then redis.call('DEL', claim) end
if redis.call('HLEN', events) >= tonumber(ARGV[6]) then return -1 end

if operation == 'join' then
  -- no two have the same time, so that a reader can go on after the last that it has read
  local last = redis.call('ZRANGE', claim, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', claim, math.max(now, (tonumber(last) or 0) + 1), value)
elseif operation ~= 'end' then
  redis.call('SET', claim, operation == 'begin' and id or value)
  if window_end > 0 then redis.call('PEXPIREAT', claim, string.format('%.0f', window_end)) end
end
redis.call('HSET', events, id, (operation == 'end' and before or '') .. ' ' .. record)
redis.call('ZADD', due, now, id)
return 1
