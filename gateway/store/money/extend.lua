-- extend(request_id, amount, floor, the fields of budgets, their limits): raises a hold to `amount`, and its floor to `floor`,
-- before a further attempt. It counts in the windows of the hold; it returns the mark of one that refuses it and what it counts.
-- Both are totals, so a call that is repeated, or arrives after a later one, changes nothing. The lease stays as it is.
-- The second value that is returned is true where the hold is not raised: as a step, it ends the script.
local request_id = ARGV[1]
arrival_ms(request_id)
local amount = integer(ARGV[2], 0, MOST, "the amount")
local floor = integer(ARGV[3], 0, amount, "the floor")
local limits, budgets = {}, (#ARGV - 3) / 2
for index = 4, 3 + budgets do
  limits[ARGV[index]] = in_range(tonumber(ARGV[index + budgets]), 0, MOST, "a budget")
end

local account, record = wallet(request_id)
if not account then
  return { request_id, "NO_ACCOUNT", 0, 0, 0 }, true
end
local status, credit_line = unpack(redis.call("HMGET", account_key, "status", "credit_line"))
credit_line = integer(credit_line or "0", 0, MOST, "the credit line")

local function reply(word, mark)
  return { request_id, word, account.balance, account.held, credit_line, mark }, word ~= "HELD"
end

local hold = hold_in(record)
if not hold then
  return reply(end_in(record) and "DONE" or "LOST")
end
if hold.expiry <= clock() then -- the next hold or sweep ends it
  return reply("DONE")
end
local more = amount - hold.amount
if more <= 0 then
  return reply("HELD")
end
if status ~= "active" then
  return reply("INACTIVE")
end
if account.balance - account.held + credit_line < more then
  return reply("FUNDS")
end
if account.held + more > MOST then
  refuse("the new sum of holds is beyond its range")
end
local marks = marks_in(hold.marks)
if marks then
  know(account, marks.fields)
  for index, field in ipairs(marks.fields) do
    local limit = not field:find("^[RQ]") and limits[field]
    if limit and account.ends[field] == marks.ends[index] and account.sums[field] + more > limit then
      return reply("BUDGET", field .. "E" .. marks.ends[index] .. " " .. digits(account.sums[field]))
    end
  end
  count(account, marks, more, 0)
end
account.held = account.held + more
local raised = string.format("1 %d %d %d", amount, hold.expiry, math.max(floor, hold.floor))
change(account, request_id, raised .. record:match("^1 %d+ %d+ %d+(.*)$"))
save(account)
return reply("HELD")
