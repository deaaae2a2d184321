-- settle(request_id, kind: settle | release, cost, keep, skew, the marks that its hold returned)
-- The store's hold has the marks, too. Those of the gateway are for an orphan, whose hold and sums are lost.
-- The second value that is returned is true where another amount than the cost was charged: as a step, it ends the script.
local request_id, kind = ARGV[1], ARGV[2]
local arrived = arrival_ms(request_id)
local cost = integer(ARGV[3], 0, kind == "settle" and MOST or 0, "the cost")
local keep = integer(ARGV[4], 1, MOST, "keep")
local skew = integer(ARGV[5], 1, MOST, "skew")
if kind ~= "settle" and kind ~= "release" then
  refuse("the kind is neither settle nor release")
end
local answered, given = kind == "settle", marks_in(ARGV[6])
if given and (given.text:gsub("[DWMTRSQ][%l%d]*E%d%d%d%d%d%d%d%d%d%d%d%d%d", "") ~= "") then
  refuse("the marks are not readable")
end

local account, record = wallet(request_id, given and given.fields)
if not account then
  return { request_id, "NO_ACCOUNT", 0 }, cost ~= 0
end
if account.balance - cost < -MOST then
  refuse("the new balance is beyond its range")
end
local now = clock()
-- The last digit is random: one settlement in eight trims up to 32 ends.
if request_id:find("[08]$") and trim(account, now, keep, skew) then
  record = redis.call("HGET", wallet_key, request_id)
end

local hold, past = hold_in(record), end_in(record)
local marks, own = given, hold or past
if own and not (given and given.text == own.marks) then
  marks = marks_in(own.marks)
  if marks then
    know(account, marks.fields)
  end
end
local result, charged = "OK", cost
if hold then
  finish(account, request_id, hold, kind, cost, marks, answered)
elseif past and past.kind ~= "expire" then
  result, charged = "DONE", past.charged
elseif past then -- the total charge becomes the cost: expiry charged the floor, or nothing
  change(account, request_id, "1 late " .. digits(cost))
  if marks then
    count(account, marks, cost - past.charged, answered and 1 or 0)
    move(account, "late", request_id, past.charged - cost, "budgets", charged_in(marks, answered))
  else
    move(account, "late", request_id, past.charged - cost)
  end
  result = "LATE"
elseif arrived < now - keep or arrived > now + skew then
  redis.call("HSETNX", stale, request_id, digits(cost))
  result, charged = "STALE", 0
else
  for index, field in ipairs(marks and marks.fields or {}) do
    if account.ends[field] < marks.ends[index] then -- the first one of its window was lost as well
      account.ends[field], account.sums[field], account.counted[field] = marks.ends[index], 0, true
      if field:find("^[SQ]") then
        redis.call("ZADD", sessions, "NX", now, field:sub(2))
      end
    end
  end
  finish(account, request_id, nil, "orphan", cost, marks, answered)
  result = "ORPHAN"
end
if #account.changed > 0 then
  save(account)
end
local reply = { request_id, result, charged }
if marks then -- the budgets that the request counts in, and what is charged in each at least; -1 where the window is over
  reply[4] = marks.text
  for index, field in ipairs(marks.fields) do
    local held = field:find("^[RQ]") and account.holds or account.held -- in other windows, too
    reply[index + 4] = account.ends[field] == marks.ends[index] and math.max(0, account.sums[field] - held) or -1
  end
end
return reply, charged ~= cost
