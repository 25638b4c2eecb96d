-- levels tells what keys have left and what of theirs waits, for people to look at.
--
-- KEYS  1 epoch:{tag}; then per key: ratelimit:{tag}:<key> lane:{tag}:<key> busy:{tag}:<key> retry:{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then per key: its rule
-- reply {1} the epoch is another; else {0, now, 0, then per key: {code (0, or -1 damaged), events that wait, us for which
--       nothing is pushed since the receiver is away, then the whole tokens of each limit (negative: slots promised)}}
-- Invariant: nothing is written.
--
-- cat base.lua common.lua waiting.lua levels.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 1
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local all, a = rules()
local reply = {0, now, 0}

for i = 2, #KEYS, 4 do
  local L = all[ARGV[a + (i - 2) / 4]]
  local waiting, leased = backlog(KEYS[i + 1], KEYS[i + 3]), size(KEYS[i + 2])
  local s = waiting and leased and level(L, KEYS[i], now)
  local out = {s and 0 or -1, (waiting or 0) + (leased or 0), s and max(0, s.closedUntil - now) or 0}
  if s then
    refill(s, L, now, since)
    for j = 1, #L do out[3 + j] = left(L[j], s[j], now) end
  end
  reply[#reply + 1] = out
end
return reply
