-- hold(request_id, amount, floor, lease, fingerprint, max holds, keep, skew, the fields of the budgets of account and token, then
-- their limits, then for each the ends of the last, the current and the next two windows by the gateway's clock)
-- Returns also the marks of the budgets that the request counts in, or that of the one that refuses it and what it counts.
-- The second value that is returned is true where nothing is held: as a step, it ends the script.
local DAY = 86400000
local request_id, fingerprint = ARGV[1], ARGV[5]
local arrived = arrival_ms(request_id)
local amount = integer(ARGV[2], 0, MOST, "the amount")
local floor = integer(ARGV[3], 0, amount, "the floor")
local keep = integer(ARGV[7], 1, MOST, "keep")
local skew = integer(ARGV[8], 1, MOST, "skew")
local lease = integer(ARGV[4], 1, keep, "the lease")
local max_holds = integer(ARGV[6], 1, MOST, "the most holds")
if not fingerprint:match("^[%l%d]+$") or #fingerprint > 64 then
  refuse("the fingerprint is not 1 to 64 lower-case letters and digits")
end
local budgets = (#ARGV - 8) / 3
local fields = budgets > 0 and { unpack(ARGV, 9, 8 + budgets) } or nil
for index = 9, 8 + budgets do
  if not ARGV[index]:find("^[DWMTRSQ][%l%d]*$") or #ARGV[index + 2 * budgets] % 14 ~= 13 then
    refuse("a budget has no such field, or the ends of its windows are not readable")
  end
  in_range(tonumber(ARGV[index + budgets]), 0, MOST, "a budget")
end

local account, record = wallet(request_id, fields)
if not account then
  return { request_id, "NO_ACCOUNT", 0, 0, 0 }, true
end
local status, credit_line = unpack(redis.call("HMGET", account_key, "status", "credit_line"))
credit_line = integer(credit_line or "0", 0, MOST, "the credit line")
local now = clock()

local over = {}
if account.holds > 0 and account.due <= now then
  over = expire(account, now, 16)
  if #over > 0 then
    save(account)
    record = redis.call("HGET", wallet_key, request_id)
  end
end

local function reply(word, marks)
  if marks then -- requests and their charges come in pairs, so that one value more is the marks
    over[#over + 1] = marks
  end
  return { request_id, word, account.balance, account.held, credit_line, unpack(over) }, word ~= "HELD"
end

local hold = hold_in(record)
if hold and hold.expiry <= now then -- expired, but not among the 16 ended above
  local counted = marks_in(hold.marks)
  if counted then
    know(account, counted.fields)
  end
  finish(account, request_id, hold, "expire", hold.floor, counted, false)
  save(account)
  over[#over + 1], over[#over + 2] = request_id, hold.floor
  return reply("DONE")
end
if hold then
  return reply(hold.fingerprint == fingerprint and "HELD" or "CONFLICT", hold.marks)
end
if end_in(record) then
  return reply("DONE")
end
if math.abs(arrived - now) > skew then
  return reply("SKEW")
end
if status ~= "active" then
  return reply("INACTIVE")
end
if account.holds >= max_holds then
  return reply("BUSY")
end
if account.balance - account.held + credit_line < amount and (amount > 0 or budgets == 0) then
  return reply("FUNDS")
end
local function first_after(moment, windows)
  for ends in windows:gmatch("%d+") do
    if ends + 0 > moment then
      return ends
    end
  end
end

-- A window counts until its end, also where the clock steps back by hours or the time zone changes. One of the calendar that begins
-- more than a day from now is of a clock that was wrong. That of a session ends thirty days after its first request, or when it is forgotten.
local marks, used = fields and { text = "", fields = fields, ends = {} }, {}
local function note_sessions()
  for session in pairs(used) do
    redis.call("ZADD", sessions, now, session)
  end
  if next(used) then
    forget_sessions(now)
  end
end
for index = 1, budgets do
  local field, windows = fields[index], ARGV[8 + 2 * budgets + index]
  local ends, sum, session = account.ends[field], account.sums[field], field:match("^[SQ](.+)")
  if session then
    local last = redis.call("ZSCORE", sessions, session)
    if not last or last + 3600000 <= now then
      ends = ""
    end
    windows, used[session] = digits(now + 30 * DAY), true
  end
  local wrong = not session and ends ~= windows:sub(15, 27) and ends > (first_after(now + DAY, windows) or ends)
  if ends == "" or ends + 0 <= now or wrong then
    ends, sum = first_after(now, windows), 0
    if not ends then
      return reply("SKEW")
    end
    account.ends[field], account.sums[field], account.counted[field] = ends, sum, true
  end
  local mark = field .. "E" .. ends
  local added = field:find("^[RQ]") and 1 or amount
  if added > 0 and sum + added > ARGV[8 + budgets + index] + 0 then
    note_sessions()
    return reply("BUDGET", mark .. " " .. digits(sum))
  end
  marks.text, marks.ends[index] = marks.text .. mark, ends
end
if account.held + amount > MOST then
  refuse("the new sum of holds is beyond its range")
end
local expiry = now + lease
if account.holds == 0 or expiry < account.due then
  account.due = expiry
end
account.held, account.holds = account.held + amount, account.holds + 1
local text = marks and marks.text
note_sessions()
if marks then
  count(account, marks, amount, 1)
  fingerprint = fingerprint .. text
end
change(account, request_id, string.format("1 %d %d %d %s", amount, expiry, floor, fingerprint))
redis.call("ZADD", leases, expiry, request_id)
save(account)
return reply("HELD", text)
