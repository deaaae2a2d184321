-- archive(account, the field `archived` as read before, number of lines, id of the last one, keep, skew)
-- Trims the first lines of the ledger, which are already in a file, and adds their sums to the wallet's field `archived`.
local before, last = ARGV[2], ARGV[4]
local count = integer(ARGV[3], 1, 1000, "the number of lines")
local keep = integer(ARGV[5], 1, MOST, "keep")
local skew = integer(ARGV[6], 1, MOST, "skew")
if (redis.call("HGET", wallet_key, "archived") or "") ~= before then
  return { ARGV[1], "CHANGED", "" }
end
local lines, total, transactions, credited = before:match("^1 (%d+) (%-?%d+) (%d+) (%-?%d+) %d+%-%d+$")
if before ~= "" and not lines then
  refuse("what is archived is not readable")
end
local page = redis.call("XRANGE", ledger, "-", last, "COUNT", count + 1)
if #page ~= count or page[count][1] ~= last then
  refuse("the ledger does not begin with these lines")
end
-- As long as a request's end is stored, a later line may correct its line in the ledger.
local ms, number = last:match("^(%d+)%-(%d+)$")
if tonumber(ms) >= clock() - keep - 2 * skew then
  refuse("a line is too young to be archived")
end

total, transactions, credited = tonumber(total or 0), tonumber(transactions or 0), tonumber(credited or 0)
for _, line in ipairs(page) do
  local fields = {}
  for at = 1, #line[2], 2 do
    fields[line[2][at]] = line[2][at + 1]
  end
  local amount = integer(fields.amount, -MOST, MOST, "an amount in the ledger")
  total = total + amount
  if fields.kind == "credit" or fields.kind == "adjust" then
    transactions, credited = transactions + 1, credited + amount
  end
end
integer(digits(total), -MOST, MOST, "what is archived")
integer(digits(credited), -MOST, MOST, "what is archived")

-- Free memory first: a store that is out of memory refuses a script whose first write allocates some.
redis.call("XTRIM", ledger, "MINID", "=", ms .. "-" .. digits(tonumber(number) + 1))
local request_ids = resolved_by(page)
if #request_ids > 0 then
  redis.call("HDEL", wallet_key, unpack(request_ids))
end
local sums = { "1", digits((lines or 0) + count), digits(total), digits(transactions), digits(credited), last }
local archived = table.concat(sums, " ")
redis.call("HSET", wallet_key, "archived", archived)
return { ARGV[1], "OK", archived }
