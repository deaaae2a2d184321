-- What all wallet scripts share. Amounts are micros, times are milliseconds of the store's own clock.
-- A script is atomic but is never rolled back: every argument and every stored number is checked before the first write.
local account_key, holds, leases, ended, ended_at, ledger, credits, stale = unpack(KEYS)
local MOST = 9007199254740991 -- 2^53 - 1: larger integers are not exact in a Lua number

local function refuse(text)
  error({ err = "ERR wallet: " .. text })
end

local function integer(text, least, most, what)
  local number = text and #text <= 17 and text:find("^%-?%d+$") and text + 0
  if not number or number < least or number > most then
    refuse(what .. " is not an integer in its range")
  end
  return number
end

-- `..` and tostring lose digits from 1e14 on; adding 0 turns -0 into 0. redis.call writes its number arguments in full.
local function digits(number)
  return string.format("%.0f", number + 0)
end

local function clock()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The time in a UUIDv7.
local function arrival_ms(request_id)
  local high, low = request_id:match("^(%x%x%x%x%x%x%x%x)%-(%x%x%x%x)%-7%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$")
  if not high then
    refuse("the request id is not a UUIDv7")
  end
  return tonumber(high .. low, 16)
end

-- The account's numbers, or nil if there is no such account. They are read once; between a change and `save` nothing may
-- raise an error.
local function wallet()
  local stored = redis.call("HMGET", account_key, "status", "balance", "held", "holds", "credit_line")
  if not stored[1] then
    return nil
  end
  return {
    status = stored[1],
    balance = integer(stored[2], -MOST, MOST, "the balance"),
    held = integer(stored[3], 0, MOST, "the sum of holds"),
    holds = integer(stored[4], 0, MOST, "the number of holds"),
    credit_line = integer(stored[5] or "0", 0, MOST, "the credit line"),
  }
end

local function save(account)
  redis.call("HSET", account_key, "balance", account.balance, "held", account.held, "holds", account.holds)
end

local function hold_of(request_id)
  local stored = redis.call("HGET", holds, request_id)
  if not stored then
    return nil
  end
  local amount, expiry, floor, fingerprint = stored:match("^1 (%d+) (%d+) (%d+) (%w+)$")
  if not amount then
    refuse("a hold is not readable")
  end
  return { amount = amount + 0, expiry = expiry + 0, floor = floor + 0, fingerprint = fingerprint }
end

-- How a request was resolved and its charge, or nil.
local function end_of(request_id)
  local stored = redis.call("HGET", ended, request_id)
  if not stored then
    return nil
  end
  local kind, charged = stored:match("^1 (%l+) (%d+)$")
  if not kind then
    refuse("an ended request is not readable")
  end
  return { kind = kind, charged = charged + 0 }
end

-- Changes the balance by `amount` and adds a line to the ledger.
local function move(account, kind, id, amount, ...)
  account.balance = account.balance + amount
  redis.call("XADD", ledger, "*", "kind", kind, "id", id, "amount", digits(amount), ...)
end

-- Deletes the ends of requests whose id is no longer accepted. They are kept for two skews longer: one for the clock that
-- made the id, one for a store that took over with another clock.
local function trim(now, keep, skew)
  local old = redis.call("ZRANGEBYSCORE", ended_at, "-inf", "(" .. digits(now - keep - 2 * skew), "LIMIT", 0, 32)
  if #old > 0 then
    redis.call("HDEL", ended, unpack(old))
    redis.call("ZREM", ended_at, unpack(old))
  end
end

-- Resolves a request: deletes its hold if it has one, charges it, stores its end.
local function finish(account, request_id, hold, kind, charge, now)
  if hold then
    redis.call("HDEL", holds, request_id)
    redis.call("ZREM", leases, request_id)
    account.held, account.holds = account.held - hold.amount, account.holds - 1
  end
  redis.call("HSET", ended, request_id, "1 " .. kind .. " " .. digits(charge))
  redis.call("ZADD", ended_at, now, request_id)
  move(account, kind, request_id, -charge)
end

-- Ends up to `limit` holds whose lease has expired, the oldest first. Returns { request_id, charge, request_id, charge, ... }.
-- All are read before the first one is ended.
local function expire(account, now, limit)
  local request_ids = redis.call("ZRANGEBYSCORE", leases, "-inf", now, "LIMIT", 0, limit)
  if #request_ids == 0 then
    return request_ids
  end
  local found, over = {}, {}
  for index, request_id in ipairs(request_ids) do
    found[index] = hold_of(request_id) or refuse("a lease has no hold")
  end
  for index, request_id in ipairs(request_ids) do
    local hold = found[index]
    finish(account, request_id, hold, "expire", hold.floor, now)
    over[2 * index - 1], over[2 * index] = request_id, hold.floor
  end
  save(account)
  return over
end
