-- The health and the limits of channels, by the store's own clock.
--
-- KEYS  for each channel: its state (a hash), its slots (request -> end of its lease), its calls of the last minute
-- ARGV  'admit', request, then for each channel: concurrent, requests per minute (0: no limit), lease, the probe's lease
--       'look', then the same arguments: returns what 'admit' would return, and takes no slot
--       'sync', worker, reports (JSON, one for each channel), first cool-down, maximum cool-down, window, minimum of failures
-- Times are in ms. 'admit' returns the number of the channel (0: none), whether the call is its probe, and when to retry.
-- 'sync' returns for each channel its condition (0 healthy, 1 cooling, 2 probing, 3 disabled), and the rest of its cool-down.
--
-- `until` is the end of a cool-down. It is deleted only when a probe has succeeded.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function numbers(key, ...)
  local values = redis.call('HMGET', key, ...)
  for index = 1, #values do values[index] = tonumber(values[index] or 0) end
  return unpack(values)
end

local function room(slots, calls, concurrent, per_minute)
  if concurrent > 0 then
    -- when a slot becomes free is not known
    if redis.call('ZCOUNT', slots, '(' .. now, '+inf') >= concurrent then return 1000 end
  end
  if per_minute > 0 then
    local since = '(' .. now - 60000
    if redis.call('ZCOUNT', calls, since, '+inf') >= per_minute then
      return redis.call('ZRANGE', calls, since, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2] + 60000 - now
    end
  end
  return 0
end

if ARGV[1] == 'admit' or ARGV[1] == 'look' then
  local takes, request, soonest = ARGV[1] == 'admit', ARGV[2], 60000
  for index = 1, #KEYS / 3 do
    local state, slots, calls = KEYS[3 * index - 2], KEYS[3 * index - 1], KEYS[3 * index]
    local concurrent, per_minute, lease, probe_lease = tonumber(ARGV[4 * index - 1]), tonumber(ARGV[4 * index]),
      tonumber(ARGV[4 * index + 1]), tonumber(ARGV[4 * index + 2])
    local cool_until, probe, disabled = numbers(state, 'until', 'probe', 'disabled')
    local wait
    if disabled > 0 then wait = 60000
    elseif cool_until > now then wait = cool_until - now
    elseif cool_until > 0 and probe > now then wait = 1000
    else wait = room(slots, calls, concurrent, per_minute) end
    if wait <= 0 then
      if takes and concurrent > 0 then
        redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
        redis.call('ZADD', slots, now + lease, request)
        if redis.call('PTTL', slots) < lease then redis.call('PEXPIRE', slots, lease) end
      end
      if takes and per_minute > 0 then
        redis.call('ZREMRANGEBYSCORE', calls, '-inf', now - 60000)
        redis.call('ZADD', calls, now, request)
        redis.call('PEXPIRE', calls, 60000)
      end
      if takes and cool_until > 0 then redis.call('HSET', state, 'probe', now + probe_lease) end
      return { index, cool_until > 0 and 1 or 0, 0 }
    end
    soonest = math.min(soonest, wait)
  end
  return { 0, 0, soonest }
end

local worker, reports = ARGV[2], cjson.decode(ARGV[3])
local first, longest, window, fewest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local seen = {}

local function cool(state, at_least)
  local streak = redis.call('HINCRBY', state, 'streak', 1)
  local grown = first * 2 ^ math.min(streak - 1, 30)
  redis.call('HSET', state, 'until', string.format('%.0f', now + math.min(longest, math.max(grown, at_least))))
  redis.call('HDEL', state, 'probe', 'ok', 'failed', 'ok_before', 'failed_before')
end

local function count(state, report)
  local turn = math.floor(now / window)
  local last, ok, failed, ok_before, failed_before = numbers(state, 'turn', 'ok', 'failed', 'ok_before', 'failed_before')
  if last < turn then
    ok_before, failed_before = last == turn - 1 and ok or 0, last == turn - 1 and failed or 0
    ok, failed = 0, 0
  end
  ok, failed = ok + report.ok, failed + report.failed
  redis.call('HSET', state, 'turn', turn, 'ok', ok, 'failed', failed, 'ok_before', ok_before, 'failed_before', failed_before)
  failed = failed + failed_before
  -- A report of nothing but failures is enough, even if the channel worked well until now.
  local nothing_else = report.ok == 0 and report.failed >= fewest
  return nothing_else or (failed >= fewest and failed >= ok + ok_before)
end

local function note(state, report)
  if report.ok > 0 then
    local latency = numbers(state, 'latency')
    local took = report.took_ms / report.ok
    redis.call('HSET', state, 'latency', string.format('%.0f', latency == 0 and took or latency * 0.8 + took * 0.2))
  end
  if report.error ~= '' then redis.call('HSET', state, 'error', report.error, 'error_at', now) end
  if report.in_flight > 0 then
    redis.call('HSET', state, 'in:' .. worker, report.in_flight .. ' ' .. now + 10000)
  else
    redis.call('HDEL', state, 'in:' .. worker)
  end
  local fields = redis.call('HGETALL', state)
  for at = 1, #fields, 2 do
    if fields[at]:sub(1, 3) == 'in:' and tonumber(fields[at + 1]:match(' (%d+)$')) < now then
      redis.call('HDEL', state, fields[at])
    end
  end
end

for index, report in ipairs(reports) do
  local state, slots = KEYS[3 * index - 2], KEYS[3 * index - 1]
  for _, request in ipairs(report.left) do redis.call('ZREM', slots, request) end
  note(state, report)
  if report.probe == 'ok' then
    redis.call('HDEL', state, 'until', 'probe', 'streak')
  elseif report.probe == 'failed' then
    cool(state, report.cool_ms)
  elseif report.probe == 'void' then
    redis.call('HDEL', state, 'probe')
  end
  local cool_until, disabled = numbers(state, 'until', 'disabled')
  local failing = report.ok + report.failed > 0 and count(state, report)
  if report.probe ~= 'failed' then
    if cool_until > now then -- failures of calls in flight do not extend it, but a request of the upstream does
      if report.cool_ms > 0 and now + math.min(longest, report.cool_ms) > cool_until then
        redis.call('HSET', state, 'until', string.format('%.0f', now + math.min(longest, report.cool_ms)))
      end
    elseif report.cool_ms >= 0 or (failing and cool_until == 0) then
      cool(state, report.cool_ms)
    end
  end
  cool_until = numbers(state, 'until')
  local condition = disabled > 0 and 3 or cool_until > now and 1 or cool_until > 0 and 2 or 0
  seen[#seen + 1] = { condition, math.max(0, cool_until - now) }
end
return seen
