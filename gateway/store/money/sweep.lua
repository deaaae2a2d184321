-- sweep(account, limit, keep, skew): ends up to `limit` holds whose lease has expired.
local limit = integer(ARGV[2], 1, 1000, "the limit")
local keep = integer(ARGV[3], 1, MOST, "keep")
local skew = integer(ARGV[4], 1, MOST, "skew")
local account = wallet()
if not account then
  return { ARGV[1], 0 }
end
local now = clock()
trim(account, now, keep, skew)
while forget_sessions(now) do end
local over = expire(account, now, limit)
if #over > 0 or #account.changed > 0 then
  save(account)
end
return { ARGV[1], now, unpack(over) }
