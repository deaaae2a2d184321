-- The limits of one account or one token in one scope: decided together, by the store's own clock, all or nothing.
-- A rate is a leaky bucket of integers, which is GCRA with a burst of one minute: each unit taken adds MINUTE, each
-- microsecond removes `limit`, and the capacity is limit * MINUTE. Nothing is rounded below 2^53.
--
-- KEYS  rates: the level of requests and its time, then of tokens; slots (request_id -> expiry in ms); what this request_id took
-- ARGV  'take', request_id, tokens, lease in ms, requests per minute, tokens per minute, concurrent (0: no limit)
--       'look', then the same arguments: returns what 'take' would return, and takes nothing
--       'give_back', request_id, tokens
-- The second value that is returned is true where a limit refuses: as a step, it ends the script.
-- 'take' returns the limit that refuses ('' for none), for how many ms, and the levels of the buckets.
local MINUTE = 60000000
local LARGEST = 9007199254740991
local GIVEN_BACK = 'given back'
local RENEW_MS = 30000 -- the key of slots is renewed about once in this time

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local request_id, tokens = ARGV[2], ARGV[3] + 0
local rates, taken = unpack(redis.call('MGET', KEYS[1], KEYS[3]))
local requests_kept, requests_at, tokens_kept, tokens_at = (rates or '0 0 0 0'):match('^(%d+) (%d+) (%d+) (%d+)$')

local function level(amount, at, limit)
  amount = amount + 0
  if limit == 0 or amount == 0 then return 0 end
  local elapsed = math.max(0, now - at)
  if elapsed >= amount / limit then return 0 end
  return amount - elapsed * limit
end

-- Writes both levels. That of requests is at most the limit of a minute, so it is empty within one.
local function fill(requests, requests_at, tokens, tokens_at, tokens_limit)
  tokens = math.max(0, math.min(tokens, LARGEST))
  local empty_in_ms = tokens_limit > 0 and math.ceil(tokens / tokens_limit / 1000) or 0
  local levels = string.format('%d %d %d %d', requests, requests_at, tokens, tokens_at)
  redis.call('SET', KEYS[1], levels, 'PX', math.max(60000, empty_in_ms) + 60000)
end

if ARGV[1] == 'give_back' then
  redis.call('ZREM', KEYS[2], request_id)
  if taken and taken ~= GIVEN_BACK then
    local estimate, limit = taken:match('^(%d+) (%d+)$')
    limit = limit + 0
    if limit > 0 then
      local before = level(tokens_kept, tokens_at, limit)
      local after = before + (tokens - estimate) * MINUTE
      if before > 0 or after > 0 then -- else the bucket is empty and stays so
        fill(requests_kept, requests_at, after, now, limit)
      end
    end
  end
  -- Stored for a minute, so that neither a repeated call nor a late `take` of this request counts again.
  redis.call('SET', KEYS[3], GIVEN_BACK, 'PX', 60000)
  return taken and 1 or 0
end

local lease_ms, requests_limit, tokens_limit, concurrent = ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0, ARGV[7] + 0
local requests_level = level(requests_kept, requests_at, requests_limit)
local tokens_level = level(tokens_kept, tokens_at, tokens_limit)
if math.max(requests_at, tokens_at) > now then -- the clock was set back: from now on what was taken drains again
  requests_kept, requests_at, tokens_kept, tokens_at = requests_level, now, tokens_level, now
  fill(requests_kept, requests_at, tokens_kept, tokens_at, tokens_limit)
end
if taken then return { '', 0, requests_level, tokens_level } end

local function wait(amount, units, limit)
  local over = amount - (limit - units) * MINUTE
  if limit == 0 or over <= 0 then return 0 end
  return math.ceil(math.ceil(over / limit) / 1000)
end

local requests_wait = wait(requests_level, 1, requests_limit)
local tokens_wait = wait(tokens_level, tokens, tokens_limit)
if requests_wait > 0 and requests_wait >= tokens_wait then
  return { 'requests', requests_wait, requests_level, tokens_level }, true
end
if tokens_wait > 0 then
  return { 'tokens', tokens_wait, requests_level, tokens_level }, true
end
local now_ms = math.floor(now / 1000)
local slots = concurrent > 0 and redis.call('ZCARD', KEYS[2])
local crowded = slots and slots >= concurrent -- counting those whose lease has expired
local latest = lease_ms > 0 and now_ms + lease_ms or '+inf' -- a later end is of a clock that was ahead
if crowded and redis.call('ZCOUNT', KEYS[2], '(' .. now_ms, latest) >= concurrent then
  return { 'concurrent', 1000, requests_level, tokens_level }, true -- when a slot becomes free is not known
end
if ARGV[1] == 'look' then return { '', 0, requests_level, tokens_level } end
if slots then
  if crowded then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. latest, '+inf')
  end
  redis.call('ZADD', KEYS[2], now_ms + lease_ms, request_id)
  if slots == 0 or redis.call('PTTL', KEYS[2]) < lease_ms then
    redis.call('PEXPIRE', KEYS[2], lease_ms + RENEW_MS)
  end
end
if requests_limit > 0 then
  requests_level = requests_level + MINUTE
  requests_kept, requests_at = requests_level, now
end
if tokens_limit > 0 then
  tokens_level = tokens_level + tokens * MINUTE
  tokens_kept, tokens_at = tokens_level, now
end
if requests_limit > 0 or tokens_limit > 0 then
  fill(requests_kept, requests_at, tokens_kept, tokens_at, tokens_limit)
end
redis.call('SET', KEYS[3], ARGV[3] .. ' ' .. ARGV[6], 'PX', lease_ms)
return { '', 0, requests_level, tokens_level }
