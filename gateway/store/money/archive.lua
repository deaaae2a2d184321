-- archive(account, what was archived before, how many lines, the last of them, keep, skew)
-- Trims the ledger's first lines, which a file has by now, and adds them to what the account says is archived.
local before, last = ARGV[2], ARGV[4]
local count = integer(ARGV[3], 1, 1000, "the number of lines")
local keep = integer(ARGV[5], 1, MOST, "keep")
local skew = integer(ARGV[6], 1, MOST, "skew")
if (redis.call("HGET", account_key, "archived") or "") ~= before then
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
-- As long as a request's end is remembered, a line may follow that speaks of the one before.
local ms, number = last:match("^(%d+)%-(%d+)$")
if tonumber(ms) >= clock() - keep - 2 * skew then
  refuse("a line is too young to be archived")
end

total, transactions, credited = tonumber(total or 0), tonumber(transactions or 0), tonumber(credited or 0)
local resolved = {}
for _, line in ipairs(page) do
  local fields = {}
  for at = 1, #line[2], 2 do
    fields[line[2][at]] = line[2][at + 1]
  end
  local amount = integer(fields.amount, -MOST, MOST, "an amount in the ledger")
  total = total + amount
  if fields.kind == "credit" or fields.kind == "adjust" then
    transactions, credited = transactions + 1, credited + amount
  else
    resolved[#resolved + 1] = fields.id
  end
end
integer(digits(total), -MOST, MOST, "what is archived")
integer(digits(credited), -MOST, MOST, "what is archived")

-- First what frees memory: a store that is full refuses a script whose first write takes some.
redis.call("XTRIM", ledger, "MINID", "=", ms .. "-" .. digits(tonumber(number) + 1))
if #resolved > 0 then
  redis.call("HDEL", ended, unpack(resolved))
  redis.call("ZREM", ended_at, unpack(resolved))
end
local sums = { "1", digits((lines or 0) + count), digits(total), digits(transactions), digits(credited), last }
local archived = table.concat(sums, " ")
redis.call("HSET", account_key, "archived", archived)
return { ARGV[1], "OK", archived }
