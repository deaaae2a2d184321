-- What all calls of the wallet share. Amounts are micros, times are milliseconds of the store's own clock.
-- A script is atomic but never rolled back: every argument and every stored number is checked before the first write.
local account, holds, leases, ended, ended_at, ledger, credits, stale = unpack(KEYS)
local MOST = 9007199254740991 -- 2^53 - 1: beyond it a Lua number is no longer exact

local function refuse(text)
  error({ err = "ERR wallet: " .. text })
end

local function integer(text, least, most, what)
  local number = type(text) == "string" and #text <= 17 and text:match("^%-?%d+$") and tonumber(text)
  if not number or number < least or number > most then
    refuse(what .. " is not an integer in its range")
  end
  return number
end

-- `..` and tostring lose digits from 1e14; adding 0 makes 0 of -0, which HINCRBY refuses.
local function digits(number)
  return string.format("%.0f", number + 0)
end

local function clock()
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- The moment that a UUIDv7 carries.
local function moment(rid)
  local hex = "%x%x%x%x"
  if not rid:match("^" .. hex .. hex .. "%-" .. hex .. "%-7%x%x%x%-" .. hex .. "%-" .. hex .. hex .. hex .. "$") then
    refuse("the request id is not a UUIDv7")
  end
  return tonumber(rid:sub(1, 8) .. rid:sub(10, 13), 16)
end

-- The account's numbers, or nil where there is no such account.
local function wallet()
  local stored = redis.call("HMGET", account, "status", "balance", "held", "holds", "credit_line")
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

local function hold_of(rid)
  local stored = redis.call("HGET", holds, rid)
  if not stored then
    return nil
  end
  local amount, expiry, floor, fingerprint = stored:match("^1 (%d+) (%d+) (%d+) (%w+)$")
  if not amount then
    refuse("a hold is not readable")
  end
  return { amount = tonumber(amount), expiry = tonumber(expiry), floor = tonumber(floor), fingerprint = fingerprint }
end

-- How a request was resolved and what it was charged, or nil.
local function end_of(rid)
  local stored = redis.call("HGET", ended, rid)
  if not stored then
    return nil
  end
  local kind, charged = stored:match("^1 (%l+) (%d+)$")
  if not kind then
    refuse("an ended request is not readable")
  end
  return { kind = kind, charged = tonumber(charged) }
end

-- Moves the balance by `amount`, with the line that says why.
local function move(kind, id, amount, reason)
  redis.call("HINCRBY", account, "balance", digits(amount))
  redis.call("XADD", ledger, "*", "kind", kind, "id", id, "amount", digits(amount), unpack(reason or {}))
end

-- A trimmed request must be stale, so its end outlives its id's freshness by the skew of clocks: once for the clock
-- that made the id, once for a store that took over with another clock.
local function trim(now, keep, skew)
  local old = redis.call("ZRANGEBYSCORE", ended_at, "-inf", "(" .. digits(now - keep - 2 * skew), "LIMIT", 0, 4)
  for _, rid in ipairs(old) do
    redis.call("HDEL", ended, rid)
    redis.call("ZREM", ended_at, rid)
  end
end

-- Resolves a request: gives its hold back if it has one, charges, remembers.
local function finish(rid, hold, kind, charge, now)
  if hold then
    redis.call("HDEL", holds, rid)
    redis.call("ZREM", leases, rid)
    redis.call("HINCRBY", account, "held", digits(-hold.amount))
    redis.call("HINCRBY", account, "holds", "-1")
  end
  redis.call("HSET", ended, rid, "1 " .. kind .. " " .. digits(charge))
  redis.call("ZADD", ended_at, digits(now), rid)
  move(kind, rid, -charge)
end

-- Ends up to `limit` holds whose lease is over, oldest first: { rid, charged, rid, charged, ... }.
local function expire(now, limit)
  local over = {}
  for _, rid in ipairs(redis.call("ZRANGEBYSCORE", leases, "-inf", digits(now), "LIMIT", 0, limit)) do
    local hold = hold_of(rid) or refuse("a lease has no hold")
    finish(rid, hold, "expire", hold.floor, now)
    over[#over + 1] = rid
    over[#over + 1] = hold.floor
  end
  return over
end
