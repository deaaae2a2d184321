-- The limits of an account and those of one of its tokens, decided together: all or nothing.
-- The text before this one defines `limits(KEYS, ARGV)`, which decides those of one of them.
--
-- KEYS  those of the account, then those of the token
-- ARGV  as for `limits`, with the limits of the account and then those of the token
-- Returns what `limits` says of the account and of the token, and true where one of them refuses.
local of_account, of_token = { unpack(KEYS, 1, 3) }, { unpack(KEYS, 4, 6) }
if ARGV[1] == 'give_back' then
  limits(of_token, ARGV)
  return limits(of_account, ARGV)
end

local asked = { 'look', ARGV[2], ARGV[3], ARGV[4], ARGV[8], ARGV[9], ARGV[10] }
local token, token_refuses = limits(of_token, asked)
local account, account_refuses = limits(of_account, { token_refuses and 'look' or ARGV[1], unpack(ARGV, 2, 7) })
local refused = token_refuses or account_refuses
if ARGV[1] == 'take' and not refused then
  asked[1] = 'take' -- it cannot refuse now: a level only falls
  token = limits(of_token, asked)
end
return { account, token }, refused
