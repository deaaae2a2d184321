-- Move the position of one gateway in the stream, and remove the entries that all gateways have written.
-- KEYS: stream, heard, gateways, trimmed. ARGV: installation, the position that it expects, the next one, what it says about
-- itself, how long a gateway counts as present, how long entries are kept for one that is not (both in ms), and how many.
-- Returns its position, the last id that was removed before this call, the stream's length and last id, and the time in ms.
local function parts(id)
  local ms, number = string.match(id, "^(%d+)-(%d+)$")
  return tonumber(ms), tonumber(number)
end

local function earlier(one, other)
  local ms, number = parts(one)
  local other_ms, other_number = parts(other)
  if ms ~= other_ms then
    return ms < other_ms
  end
  return number < other_number
end

local function fields(reply)
  local found = {}
  for index = 1, #reply, 2 do
    found[reply[index]] = reply[index + 1]
  end
  return found
end

local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, expected, following = ARGV[1], ARGV[2], ARGV[3]
local present_ms, kept_ms, room = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local trimmed = redis.call("GET", KEYS[4]) or "0-0"

local positions = {}
for _, group in ipairs(redis.call("XINFO", "GROUPS", KEYS[1])) do
  local about = fields(group)
  positions[about["name"]] = about["last-delivered-id"]
end
local position = positions[me]
if not position then
  return redis.error_reply("ERR no position: join first")
end
if earlier(following, trimmed) then
  following = trimmed -- what was removed cannot be read any more
end
if position == expected and following ~= expected then
  redis.call("XGROUP", "SETID", KEYS[1], me, following)
  position = following
  positions[me] = following
end
redis.call("ZADD", KEYS[2], now, me)
redis.call("HSET", KEYS[3], me, ARGV[4])

-- What every present gateway has written, and what the absent ones for which entries are kept have written, too.
local heard = redis.call("ZRANGE", KEYS[2], 0, -1, "WITHSCORES")
local written, written_by_all = position, position
for index = 1, #heard, 2 do
  local other, age = positions[heard[index]], now - tonumber(heard[index + 1])
  if other and age <= kept_ms then
    if earlier(other, written_by_all) then
      written_by_all = other
    end
    if age <= present_ms and earlier(other, written) then
      written = other
    end
  end
end

local last = fields(redis.call("XINFO", "STREAM", KEYS[1]))["last-generated-id"]
local length = redis.call("XLEN", KEYS[1])
local through = written_by_all
if length > room and earlier(written_by_all, written) then
  local oldest = redis.call("XRANGE", KEYS[1], "-", "+", "COUNT", 1)[1]
  local from, to = parts(oldest[1]), parts(last)
  -- As many as are too many, if they came evenly.
  local excess = string.format("%.0f-0", from + (to - from) * (length - room) / length)
  if length <= 1.5 * room and earlier(excess, written) then
    through = earlier(excess, written_by_all) and written_by_all or excess
  else
    through = written
  end
end
local removed = redis.call("XREVRANGE", KEYS[1], through, "-", "COUNT", 1)[1]
if removed then
  local ms, number = parts(removed[1])
  redis.call("XTRIM", KEYS[1], "MINID", string.format("%.0f-%.0f", ms, number + 1))
  redis.call("SET", KEYS[4], removed[1])
end
return {position, trimmed, redis.call("XLEN", KEYS[1]), last, now}
