-- The health and the limits of channels, by the store's own clock.
--
-- KEYS  for each channel: its state (a hash), its slots (request -> end of its lease), its calls of the last minute, and the
--       accounts whose calls failed there (a hash: digest -> JSON)
-- ARGV  'admit', request, then for each channel: concurrent, requests per minute (0: no limit), lease, the probe's lease, and 1
--       if it may be called although it cools, where no other channel admits the call
--       'look', then the same arguments: returns what 'admit' would without a last resort, and takes no slot
--       'look_alone', then the same arguments: likewise, with a last resort
--       'sync', worker, reports (JSON, one for each channel), first cool-down, maximum cool-down, window, minimum of failures
-- Times are in ms. 'admit' returns the number of the channel (0: none), whether the call is its probe, and when to retry, or
-- for how long the admitting channel cools; where it is none, for each channel why, when to retry, and its last error.
-- 'sync' returns for each channel its condition (0 healthy, 1 cooling, 2 starting, 3 disabled), the rest of its cool-down,
-- whether that is firm, a list with digest, rest of the cool-down, whether that is firm, and how often it has cooled since a
-- success, for each account that fails; its last error, unless it works for all; and a list with fingerprint and for how long
-- it is not used (-1: until it is switched on), for each credential that is set aside.
--
-- The state has of a credential that an upstream refused 'key:' and its fingerprint: until when it is set aside, since when, and
-- why, which begins with 'spent: ' where it rests until an operator says otherwise; and of one that an operator switched off 'off:'
-- and its fingerprint: since when.
--
-- It has of each of the last minutes 'min:' and the minute: how many calls ended, failed, and were limited by the upstream, then
-- how many first events came within each of the ranges of `gateway.store.channels.FIRST_EVENT_MS`.
--
-- `until` is the end of a cool-down, and `since` when that was set. It is deleted only when a call has succeeded after it. A
-- cool-down is firm after repeated failures. A call that no other channel admits is let through while a cool-down is not firm,
-- and whenever it is over. What was set at a time that is still to come, since the clock was set back, is over as well.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function numbers(key, ...)
  local values = redis.call('HMGET', key, ...)
  for index = 1, #values do values[index] = tonumber(values[index] or 0) end
  return unpack(values)
end

local function room(slots, calls, concurrent, per_minute, lease)
  if concurrent > 0 then
    -- when a slot becomes free is not known
    if redis.call('ZCOUNT', slots, '(' .. now, now + lease) >= concurrent then return 1000 end
  end
  if per_minute > 0 then
    local since = '(' .. now - 60000
    if redis.call('ZCOUNT', calls, since, now) >= per_minute then
      return redis.call('ZRANGE', calls, since, now, 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2] + 60000 - now
    end
  end
  return 0
end

local function take(index, request)
  local slots, calls = KEYS[4 * index - 2], KEYS[4 * index - 1]
  local lease = tonumber(ARGV[5 * index])
  if tonumber(ARGV[5 * index - 2]) > 0 then
    redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
    redis.call('ZREMRANGEBYSCORE', slots, '(' .. now + lease, '+inf')
    redis.call('ZADD', slots, now + lease, request)
    if redis.call('PTTL', slots) < lease then redis.call('PEXPIRE', slots, lease) end
  end
  if tonumber(ARGV[5 * index - 1]) > 0 then
    redis.call('ZREMRANGEBYSCORE', calls, '-inf', now - 60000)
    redis.call('ZADD', calls, now, request)
    redis.call('PEXPIRE', calls, 60000)
  end
end

-- Returns for how many ms the channel does not admit a call, whether the call would be its probe, for how long it cools, and
-- why it does not admit the call.
local function wait(index, last_resort)
  local cool_until, probe, disabled, since = numbers(KEYS[4 * index - 3], 'until', 'probe', 'disabled', 'since')
  if since > now then cool_until = math.min(cool_until, now) end
  local insists = last_resort and ARGV[5 * index + 2] == '1'
  if disabled > 0 then return 60000, false, 0, 'disabled' end
  if cool_until > now and not insists then return cool_until - now, false, 0, 'cooling' end
  local probed = probe > now and probe <= now + ARGV[5 * index + 1]
  if cool_until > 0 and cool_until <= now and probed and not last_resort then
    return 1000, false, 0, 'probing'
  end
  local concurrent, per_minute, lease = unpack(ARGV, 5 * index - 2, 5 * index)
  local full = room(KEYS[4 * index - 2], KEYS[4 * index - 1], tonumber(concurrent), tonumber(per_minute), lease)
  return full, cool_until > 0 and cool_until <= now and not probed, math.max(0, cool_until - now), 'full'
end

if ARGV[1] ~= 'sync' then
  local soonest, reasons
  for pass = 1, ARGV[1] == 'look' and 1 or 2 do
    soonest, reasons = 60000, {}
    for index = 1, #KEYS / 4 do
      local ms, is_probe, cools, reason = wait(index, pass == 2)
      if ms <= 0 then
        if ARGV[1] == 'admit' then
          take(index, ARGV[2])
          if is_probe then redis.call('HSET', KEYS[4 * index - 3], 'probe', now + ARGV[5 * index + 1]) end
        end
        return { index, is_probe and 1 or 0, cools }
      end
      soonest = math.min(soonest, ms)
      reasons[index] = { reason, ms, redis.call('HGET', KEYS[4 * index - 3], 'error') or '' }
    end
  end
  return { 0, 0, soonest, reasons }
end

local worker, reports = ARGV[2], cjson.decode(ARGV[3])
local first, longest, window, fewest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local turn = math.floor(now / window)
local MOST_ACCOUNTS = 64 -- at one channel
local ASIDE = 600000 -- a refused credential: it may have been blocked for a time, or its budget may be refilled
local KEPT = 7 * 24 * 3600 * 1000 -- the state of a channel that no gateway has any more
local MINUTES = 5 -- whose figures are kept, beside those of the present one
local STARTING = 15000 -- a channel whose upstream said that it loads
local seen = {}

local function grown(streak, at_least)
  return now + math.min(longest, math.max(first * 2 ^ math.min(streak - 1, 5), at_least))
end

local function cool(state, at_least, repeated)
  local streak = redis.call('HINCRBY', state, 'streak', 1)
  local firm = repeated or streak > 1
  redis.call('HSET', state, 'until', string.format('%.0f', grown(streak, at_least)), 'since', now, 'firm', firm and 1 or 0)
  redis.call('HDEL', state, 'probe')
  if firm then redis.call('HDEL', state, 'ok', 'failed', 'ok_before', 'failed_before', 'run') end
end

-- Counts a report in the channel's window. Returns the successes, the failures, and how many of these came since the last success.
local function count(state, report)
  local last, ok, failed, ok_before, failed_before, run =
    numbers(state, 'turn', 'ok', 'failed', 'ok_before', 'failed_before', 'run')
  run = (report.ok > 0 or last < turn - 1) and 0 or run
  if report.ok == 0 then run = run + report.failed end
  if last < turn then
    ok_before, failed_before = last == turn - 1 and ok or 0, last == turn - 1 and failed or 0
    ok, failed = 0, 0
  end
  ok, failed = ok + report.ok, failed + report.failed
  redis.call('HSET', state, 'turn', turn, 'ok', ok, 'failed', failed, 'ok_before', ok_before, 'failed_before', failed_before, 'run', run)
  return ok + ok_before, failed + failed_before, run
end

local function save(key, accounts)
  redis.call('DEL', key)
  for digest, account in pairs(accounts) do redis.call('HSET', key, digest, cjson.encode(account)) end
  redis.call('PEXPIRE', key, longest + 3 * window)
end

-- Returns the accounts whose calls of this channel failed lately, by digest, and how many they are.
local function failing_accounts(key)
  local accounts, number, fields = {}, 0, redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    local account = cjson.decode(fields[at + 1])
    if account.turn < turn then
      account.before, account.failed = account.turn == turn - 1 and account.failed or 0, 0
      account.turn = account.turn == turn - 1 and turn or account.turn
    end
    if account.turn == turn or account.turn < turn and account['until'] + 2 * window > now then
      accounts[fields[at]], number = account, number + 1
    end
  end
  return accounts, number
end

-- Counts one worker's report on one account. An account cools by itself, after `fewest` failures without a success between
-- them, or when the upstream asks for it; once it has cooled, each failure makes it cool for longer, until a call succeeds.
local function judge(account, report)
  if report.ok then
    account.run, account.streak, account.asked, account['until'] = 0, 0, 0, 0
    return
  end
  account.turn, account.failed, account.run = turn, account.failed + report.failed, account.run + report.failed
  if report.cool_ms > 0 then account.asked = math.max(account.asked, now + math.min(longest, report.cool_ms)) end
  if report.cool_ms == 0 then account.asked = math.max(account.asked, now + first) end
  local repeated, cools = account.run >= fewest, account['until'] > now
  if cools and (account.firm == 1 or not repeated) then
    account['until'] = math.max(account['until'], account.asked)
  elseif repeated or report.cool_ms >= 0 or account.streak > 0 then
    account.streak = account.streak + 1
    account['until'] = math.max(grown(account.streak, report.cool_ms), account['until'])
    account.firm = (repeated or account.streak > 1) and 1 or 0
  end
end

-- Returns how many failures speak against the channel and not against one account: the failures of one account count no more
-- than those of all others together.
local function weighed(failures)
  local sum, most = 0, 0
  for _, number in ipairs(failures) do sum, most = sum + number, math.max(most, number) end
  return sum - most + math.min(most, sum - most)
end

-- Counts the accounts of a report. Returns the failures that count for the channel, in its window and in this report alone; for
-- how long the upstream asked at least two accounts to wait; what 'sync' returns of the accounts; and the accounts.
local function count_accounts(key, reports)
  local accounts, number = failing_accounts(key)
  local changed, here = false, {}
  for digest, report in pairs(reports) do
    if not accounts[digest] and not report.ok and number < MOST_ACCOUNTS then
      accounts[digest], number = { turn = turn, failed = 0, before = 0, run = 0, streak = 0, firm = 0, asked = 0, ['until'] = 0 },
        number + 1
    end
    if accounts[digest] then
      judge(accounts[digest], report)
      changed = true
    end
    here[#here + 1] = report.failed
  end
  if changed then save(key, accounts) end
  local failures, told, asked, second = {}, {}, 0, 0
  for digest, account in pairs(accounts) do
    failures[#failures + 1] = account.failed + account.before
    second = math.max(second, math.min(asked, account.asked))
    asked = math.max(asked, account.asked)
    if account.run > 0 then
      told[#told + 1] = { digest, math.max(0, account['until'] - now), account.firm, account.streak }
    end
  end
  return { weighed(failures), weighed(here), second - now, told, accounts }
end

local function forget_failures(key, accounts)
  for _, account in pairs(accounts) do account.failed, account.before, account.asked = 0, 0, 0 end
  if next(accounts) then save(key, accounts) end
end

-- Counts the worker's report on credentials: why the upstream refused it, or '' where it works again.
local function judge_credentials(state, report)
  for credential, why in pairs(report.credentials or {}) do
    if why == '' then
      redis.call('HDEL', state, 'key:' .. credential)
    else
      redis.call('HSET', state, 'key:' .. credential, string.format('%.0f %.0f %s', now + ASIDE, now, why))
    end
  end
end

-- Adds a report to the figures of the present minute.
local function add_figures(state, report)
  local failed = report.failed
  for _, account in pairs(report.accounts) do failed = failed + account.failed end
  local added = { report.ok + failed - report.broken, failed, report.limited, unpack(report.first) }
  if added[1] + failed == 0 then return end
  local field = 'min:' .. math.floor(now / 60000)
  local at = 0
  for number in (redis.call('HGET', state, field) or ''):gmatch('%d+') do
    at = at + 1
    added[at] = (added[at] or 0) + number
  end
  redis.call('HSET', state, field, table.concat(added, ' '))
end

-- Counts a report. Returns the credentials that are set aside, and whether one is so until an operator says otherwise.
local function note(state, report)
  judge_credentials(state, report)
  add_figures(state, report)
  if report.starting then
    redis.call('HSET', state, 'starting', now + STARTING)
  elseif report.ok > 0 then
    redis.call('HDEL', state, 'starting')
  end
  if report.error ~= '' then redis.call('HSET', state, 'error', report.error, 'error_at', now) end
  if report.in_flight > 0 then
    redis.call('HSET', state, 'in:' .. worker, report.in_flight .. ' ' .. now + 10000)
  else
    redis.call('HDEL', state, 'in:' .. worker)
  end
  local fields, aside, off = redis.call('HGETALL', state), {}, false
  for at = 1, #fields, 2 do
    local kind, value = fields[at]:sub(1, 4), fields[at + 1]
    if kind:sub(1, 3) == 'in:' and tonumber(value:match(' (%d+)$')) < now then
      redis.call('HDEL', state, fields[at])
    elseif kind == 'min:' then
      local age = math.floor(now / 60000) - fields[at]:sub(5)
      if age > MINUTES or age < 0 then redis.call('HDEL', state, fields[at]) end
    elseif kind == 'key:' then
      local ends, since, why = value:match('^(%d+) (%d+) (.*)$')
      local rest = ends - now
      if why:sub(1, 7) == 'spent: ' then
        aside[#aside + 1], off = { fields[at]:sub(5), -1 }, true
      elseif rest <= 0 or tonumber(since) > now then redis.call('HDEL', state, fields[at]) else aside[#aside + 1] = { fields[at]:sub(5), rest } end
    elseif kind == 'off:' then
      aside[#aside + 1], off = { fields[at]:sub(5), -1 }, true
    end
  end
  return aside, off
end

for index, report in ipairs(reports) do
  local state, slots, accounts = KEYS[4 * index - 3], KEYS[4 * index - 2], KEYS[4 * index]
  for _, request in ipairs(report.left) do redis.call('ZREM', slots, request) end
  local aside, off = note(state, report)
  local before, since = numbers(state, 'until', 'since')
  if since > now then
    before = now
    redis.call('HSET', state, 'until', now, 'since', now)
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[4 * index - 1], '(' .. now, '+inf')
  if report.probe == 'ok' or (report.ok > 0 and before > 0 and before <= now) then
    redis.call('HDEL', state, 'until', 'since', 'probe', 'streak', 'firm')
  elseif report.probe == 'failed' then
    cool(state, report.cool_ms, true)
  elseif report.probe == 'void' then
    redis.call('HDEL', state, 'probe')
  end
  local cool_until, firm, disabled = numbers(state, 'until', 'firm', 'disabled')
  local by_accounts, by_accounts_here, asked_ms, told, known = unpack(count_accounts(accounts, report.accounts))
  if report.ok + report.failed > 0 or next(report.accounts) then
    local ok, failed, run = count(state, report)
    failed = failed + by_accounts
    -- Nothing but failures is enough, even if the channel worked well until now.
    local nothing_else = report.ok == 0 and run + by_accounts_here >= fewest
    local repeated = nothing_else or (failed >= fewest and failed >= ok)
    local cool_ms = math.max(report.cool_ms, asked_ms > 0 and asked_ms or -1)
    local probes_fail = cool_until > 0 and cool_until <= now and by_accounts >= 2
    if report.probe ~= 'failed' then
      if cool_until > now and (firm == 1 or not repeated) then
        -- failures of calls in flight do not extend it, but a request of the upstream does
        if cool_ms > 0 and now + math.min(longest, cool_ms) > cool_until then
          redis.call('HSET', state, 'until', string.format('%.0f', now + math.min(longest, cool_ms)), 'since', now)
        end
      elseif cool_ms >= 0 or (repeated and (cool_until == 0 or cool_until > now)) or probes_fail then
        cool(state, math.max(cool_ms, cool_until - now), repeated or probes_fail)
        if repeated or probes_fail then forget_failures(accounts, known) end
      end
    end
  end
  -- what an operator has disabled stays so
  if disabled > 0 or off then
    redis.call('PERSIST', state)
  elseif redis.call('PTTL', state) < KEPT / 2 then
    redis.call('PEXPIRE', state, KEPT)
  end
  local starting
  cool_until, firm, starting = numbers(state, 'until', 'firm', 'starting')
  local condition = disabled > 0 and 3 or cool_until > 0 and 1 or starting > now and 2 or 0
  local last_error = (condition > 0 or next(told)) and redis.call('HGET', state, 'error') or ''
  seen[#seen + 1] = { condition, math.max(0, cool_until - now), firm, told, last_error, aside }
end
return seen
