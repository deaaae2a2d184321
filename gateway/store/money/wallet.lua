-- What all wallet scripts share. Amounts are micros, times are milliseconds of the store's own clock.
-- A script is atomic but is never rolled back: every argument and every stored number is checked before the first write.
local account_key, wallet_key, leases, ledger, credits, stale, sessions = unpack(KEYS)
local MOST = 9007199254740991 -- 2^53 - 1: larger integers are not exact in a Lua number

local function refuse(text)
  error({ err = "ERR wallet: " .. text })
end

local function in_range(number, least, most, what)
  if not number or number < least or number > most then
    refuse(what .. " is not an integer in its range")
  end
  return number
end

local function integer(text, least, most, what)
  return in_range(text and #text <= 17 and text:find("^%-?%d+$") and text + 0, least, most, what)
end

-- `..` and tostring lose digits from 1e14 on. %d is exact, and writes -0 as 0.
local function digits(number)
  return string.format("%d", number)
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

-- Marks are what a request counts in, such as DE1763856000000: of each budget the wallet's field, E, and the end of its window in
-- milliseconds, 13 digits. A field is D, W, M, T or R (day, week, month, total, requests a day), and the token's id where the
-- budget is a token's; or S or Q (money and requests of a session), and a digest of the session. Returns nil where there are none.
local function marks_in(text)
  if not text or text == "" then
    return nil
  end
  local marks = { text = text, fields = {}, ends = {} }
  for field, ends in text:gmatch("(%u[%l%d]*)E(%d+)") do
    local number = #marks.fields + 1
    marks.fields[number], marks.ends[number] = field, ends
  end
  return marks
end

-- Reads the budgets with these fields, unless they were read: the end of the window that each counts now, and the sum of what
-- was charged and is held in it. `stored`: what the store has of them, after two other values.
local function know(account, fields, stored)
  if not account.counted then
    account.ends, account.sums, account.counted = {}, {}, {}
  end
  for index = 1, #fields do
    local field, text = fields[index], stored and stored[index + 2]
    if not account.ends[field] then
      text = text or not stored and redis.call("HGET", wallet_key, field)
      account.ends[field] = text and text:sub(1, 13) or ""
      account.sums[field] = text and in_range(tonumber(text:sub(15)), 0, MOST, "the sum of a budget") or 0
    end
  end
end

-- The account's numbers, or nil if there is no such account, and what is stored of a request. They are read once; between a
-- change and `save` nothing may raise an error. `due`: no lease ends before it. `changed`: what `save` writes besides, and
-- `counted`: the budgets that it writes.
local function wallet(request_id, fields)
  local stored
  if fields then
    stored = redis.call("HMGET", wallet_key, "numbers", request_id, unpack(fields))
  else
    stored = redis.call("HMGET", wallet_key, "numbers", request_id or "numbers")
  end
  if not stored[1] then
    if redis.call("EXISTS", account_key) == 1 then
      refuse("the account has no numbers: its data is of another version")
    end
    return nil
  end
  local balance, held, holds, due = stored[1]:match("^(%-?%d+) (%d+) (%d+) (%d+)$")
  local account = {
    balance = in_range(tonumber(balance), -MOST, MOST, "the balance"),
    held = in_range(tonumber(held), 0, MOST, "the sum of holds"),
    holds = in_range(tonumber(holds), 0, MOST, "the number of holds"),
    due = in_range(tonumber(due), 0, MOST, "the end of the first lease"),
    changed = {},
  }
  if fields then
    know(account, fields, stored)
  end
  return account, stored[2]
end

local function change(account, field, value)
  local changed = account.changed
  changed[#changed + 1], changed[#changed + 2] = field, value
end

-- Adds to the budgets in these marks, as far as they still count the same window: `requests` to those of requests, `amount`
-- to the others. What was held in a window is settled in it; where it is over, there is nothing to correct.
local function count(account, marks, amount, requests)
  for index, field in ipairs(marks.fields) do
    local more = field:find("^[RQ]") and requests or amount
    if more ~= 0 and account.ends[field] == marks.ends[index] then
      local sum = account.sums[field] + more
      account.sums[field] = sum < 0 and 0 or sum > MOST and MOST or sum
      account.counted[field] = true
    end
  end
end

local function save(account)
  if account.counted then
    for field in pairs(account.counted) do
      change(account, field, account.ends[field] .. " " .. digits(account.sums[field]))
    end
    account.counted = {}
  end
  local numbers = string.format("%d %d %d %d", account.balance, account.held, account.holds, account.due)
  redis.call("HSET", wallet_key, "numbers", numbers, unpack(account.changed))
  account.changed = {}
end

-- The hold in what is stored of a request, or nil.
local function hold_in(record)
  if not record or record:find("^1 %l") then
    return nil
  end
  local amount, expiry, floor, fingerprint = record:match("^1 (%d+) (%d+) (%d+) (%w+)$")
  if not amount then
    refuse("a hold is not readable")
  end
  local hold = { amount = amount + 0, expiry = expiry + 0, floor = floor + 0, fingerprint = fingerprint }
  if fingerprint:find("E", 1, true) then -- marks begin at the first capital
    hold.fingerprint, hold.marks = fingerprint:match("^([%l%d]*)(%u.*)$")
  end
  return hold
end

-- How a request was resolved and its charge, by what is stored of it; or nil. One that has expired may have marks.
local function end_in(record)
  local kind, charged, marks = (record or ""):match("^1 (%l+) (%d+) ?(%w*)$")
  if not kind and record and record:find("^1 %l") then
    refuse("an ended request is not readable")
  end
  return kind and { kind = kind, charged = charged + 0, marks = marks }
end

-- Changes the balance by `amount` and adds a line to the ledger.
local function move(account, kind, id, amount, ...)
  account.balance = account.balance + amount
  redis.call("XADD", ledger, "*", "kind", kind, "id", id, "amount", digits(amount), ...)
end

-- The marks of the budgets that a line of the ledger is charged in: those of requests only where the request was answered.
local function charged_in(marks, answered)
  return answered and marks.text or (marks.text:gsub("[RQ][%l%d]*E%d+", ""))
end

-- The requests that these lines of the ledger resolve.
local function resolved_by(lines)
  local request_ids = {}
  for _, line in ipairs(lines) do
    local kind, id = line[2][2], line[2][4]
    if kind ~= "credit" and kind ~= "adjust" and kind ~= "late" then
      request_ids[#request_ids + 1] = id
    end
  end
  return request_ids
end

-- Forgets the sessions whose last request is an hour old, 16 at most; else the oldest of more than a thousand.
local function forget_sessions(now)
  local old = redis.call("ZRANGEBYSCORE", sessions, "-inf", now - 3600000, "LIMIT", 0, 16)
  local more = redis.call("ZCARD", sessions) - 1000
  if #old == 0 and more > 0 then
    old = redis.call("ZRANGE", sessions, 0, math.min(more, 16) - 1)
  end
  for _, session in ipairs(old) do
    redis.call("HDEL", wallet_key, "S" .. session, "Q" .. session)
    redis.call("ZREM", sessions, session)
  end
  return #old > 0
end

-- Deletes the ends of requests whose id is no longer accepted. They are kept for two skews longer: one for the clock that
-- made the id, one for a store that took over with another clock. The ledger has the ends in the order of their times.
-- Returns whether there were any.
local function trim(account, now, keep, skew)
  local trimmed = redis.call("HGET", wallet_key, "trimmed") or "0-0"
  local before = now - keep - 2 * skew
  local old = before > 0 and redis.call("XRANGE", ledger, "(" .. trimmed, digits(before - 1), "COUNT", 32) or {}
  if #old > 0 then
    local request_ids = resolved_by(old)
    if #request_ids > 0 then
      redis.call("HDEL", wallet_key, unpack(request_ids))
    end
    change(account, "trimmed", old[#old][1])
  end
  return #old > 0
end

-- Resolves a request: deletes its hold's lease if it has one, charges it, stores its end in place of the hold. A request
-- that was `answered` counts in the budgets of requests; one that was released or has expired no longer does.
local function finish(account, request_id, hold, kind, charge, marks, answered)
  if hold then -- first what frees memory: a store that is out of it refuses a script whose first write allocates some
    redis.call("ZREM", leases, request_id)
    account.held, account.holds = account.held - hold.amount, account.holds - 1
  end
  local stored = string.format("1 %s %d", kind, charge)
  if not marks then
    change(account, request_id, stored)
    move(account, kind, request_id, -charge)
    return
  end
  count(account, marks, charge - (hold and hold.amount or 0), (answered and 1 or 0) - (hold and 1 or 0))
  change(account, request_id, kind == "expire" and stored .. " " .. marks.text or stored)
  move(account, kind, request_id, -charge, "budgets", charged_in(marks, answered))
end

-- Ends up to `limit` holds whose lease has expired, the oldest first. Returns { request_id, charge, request_id, charge, ... }.
-- All are read before the first one is ended.
local function expire(account, now, limit)
  local request_ids = redis.call("ZRANGEBYSCORE", leases, "-inf", now, "LIMIT", 0, limit)
  local found, over = {}, {}
  if #request_ids > 0 then
    for index, record in ipairs(redis.call("HMGET", wallet_key, unpack(request_ids))) do
      found[index] = hold_in(record) or refuse("a lease has no hold")
      found[index].marks = marks_in(found[index].marks)
      if found[index].marks then
        know(account, found[index].marks.fields)
      end
    end
  end
  for index, request_id in ipairs(request_ids) do
    local hold = found[index]
    finish(account, request_id, hold, "expire", hold.floor, hold.marks, false)
    over[2 * index - 1], over[2 * index] = request_id, hold.floor
  end
  account.due = tonumber(redis.call("ZRANGE", leases, 0, 0, "WITHSCORES")[2] or 0)
  return over
end
