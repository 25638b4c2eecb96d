-- reserve takes tokens for new events, now or at a slot within the horizon, or says that they have to wait.
--
-- KEYS  1 epoch:{tag}; then per entry: ratelimit:{tag}:<key> lane:{tag}:<key> busy:{tag}:<key> retry:{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 num  4 den  5 burst  6 clock tolerance us  7 expiry margin us
--       8 longest wait as tokens of refill (-1: any)  9 most events of a key that wait (-1: any)
--       then per entry: n, the number of events; cost, the tokens of each; horizon us (-1: grant nothing)
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, then 7 integers per entry:
--       code (0 by the bucket, 1 others wait ahead, 2 cooling, 3 paused, -1 damaged), granted now, granted at slots,
--       to be parked, tokens, frac (usable level before), events ahead}; the rest of n would wait too long
-- Invariant: granted slots never exceed burst + rate x time; a refusal leaves the bucket as it was; a key that is told to
--       park is open for 2 s, so that newer events can't pass before the lane's index is written.
--
-- cat common.lua reserve.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' , ID 0 1 10000 20 1000000 60000000 -1 -1 1 1 1000000
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local c = {num = tonumber(ARGV[3]), den = tonumber(ARGV[4]), burst = tonumber(ARGV[5]), tol = tonumber(ARGV[6])}
local margin, maxWait, maxWaiting = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local reply = {0, now, 0}
local wrote = false

-- grants answers how many of n events at price tokens each go now, and how many in all within the horizon.
local function grants(s, n, price, horizon)
  if horizon < 0 then return 0, 0 end
  if c.num < 0 then return n, n end
  local g = max(0, min(n, floor(s.we / price)))
  local m = max(g, min(n, floor((s.we * c.den + s.fe + c.num * horizon) / (c.den * price))))
  return g, m
end

for i = 0, (#KEYS - 1) / 4 - 1 do
  local n, price, horizon = tonumber(ARGV[10 + 3 * i]), tonumber(ARGV[11 + 3 * i]), tonumber(ARGV[12 + 3 * i])
  local lane, busy, retry = KEYS[4 * i + 3], KEYS[4 * i + 4], KEYS[4 * i + 5]
  local s = level(KEYS[4 * i + 2], now)
  local out = {-1, 0, 0, n, 0, 0, 0}
  if s then
    refill(s, c, now, since)
    local opening = s.opening
    local ahead, leased = opening, 0
    if redis.call('EXISTS', lane, busy, retry) > 0 then
      ahead = ahead + redis.call('ZCARD', lane) + redis.call('ZCARD', retry)
      leased = redis.call('ZCARD', busy)
    end
    local code, g, m = 0, 0, 0
    if c.num == 0 then code = 3
    elseif s.closedUntil > now then code = 2
    elseif ahead + leased > 0 then code = 1
    else g, m = grants(s, n, price, horizon) end

    local parked = n - m
    if parked > 0 and code < 2 and maxWait >= 0 and c.num > 0 then
      parked = max(0, min(parked, floor((s.we - m * price + maxWait - ahead) / price)))
    end
    if maxWaiting >= 0 then parked = max(0, min(parked, maxWaiting - ahead)) end

    out = {code, g, m - g, parked, s.we, s.fe, ahead}
    if m > 0 and c.num > 0 then charge(s, m * price) end
    if parked > 0 then
      s.opened, s.opening = now + 2000000, opening + parked
      put(s, 'opened', d(s.opened))
      put(s, 'opening', d(s.opening))
    end
    if s.dirty or s.set then wrote = true end
    save(s, c, now, margin)
  end
  local at = 3 + 7 * i
  for j = 1, 7 do reply[at + j] = out[j] end
end
reply[3] = wrote and redis.call('HINCRBY', KEYS[1], 'n', '1') or 0
return reply
