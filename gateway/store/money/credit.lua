-- credit(transaction, kind: credit | adjust, amount, reason[, credit, the refunds before it ...])
-- With `credit`, the transaction is a refund of it: of the amount, or for 0 of all that was not refunded before, and of no more
-- than is left and not held.
local transaction, kind, reason, refunded = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local amount = integer(ARGV[3], kind == "adjust" and -MOST or 1, MOST, "the amount")
if not transaction:match("^[%w._:-]+$") or #transaction > 64 then
  refuse("the transaction id is not 1 to 64 letters, digits and . _ : -")
end
if (kind ~= "credit" and kind ~= "adjust") or #reason > 500 then
  refuse("the kind is neither credit nor adjust, or the reason is longer than 500 bytes")
end

local account = wallet()
if not account then
  return { transaction, "NO_ACCOUNT", 0 }
end
local known = redis.call("HGET", credits, transaction)
if refunded then
  local paid = tonumber(redis.call("HGET", credits, refunded) or 0)
  if known then  -- it may have booked less than was asked for, but never more
    local other = amount ~= 0 and tonumber(known) < amount
    return { transaction, other and "CONFLICT" or "DONE", account.balance, tonumber(known) }
  end
  if paid < 1 then return { transaction, "NO_CREDIT", account.balance, 0 } end
  for index = 6, #ARGV do
    local before = redis.call("HGET", credits, ARGV[index])
    if not before then return { transaction, "NO_REFUND", account.balance, 0 } end
    paid = paid + before
  end
  if paid < 1 or paid < -amount then return { transaction, "LESS", account.balance, paid } end
  amount = -math.min(amount == 0 and paid or -amount, math.max(0, account.balance - account.held))
elseif transaction:find("^refund:") then  -- the refunds of a credit are found by their names
  return { transaction, "RESERVED", account.balance }
elseif known then
  return { transaction, known == digits(amount) and "DONE" or "CONFLICT", account.balance }
end
if kind == "credit" and redis.call("HGET", account_key, "status") == "closed" then
  return { transaction, "CLOSED", account.balance }
end
integer(digits(account.balance + amount), -MOST, MOST, "the new balance")
redis.call("HSET", credits, transaction, digits(amount))
move(account, kind, transaction, amount, "reason", reason)
save(account)
return { transaction, "OK", account.balance, amount }
