-- charge takes tokens that were spent while Redis was away, whatever is there.
--
-- KEYS  1 epoch:{tag}; then per entry: ratelimit:{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then per entry: its rule, and for each limit
--       of that: tokens
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, number of entries that are damaged and so
--       weren't charged}
-- Invariant: no level is taken lower than to the debt that a second pays off, in whole tokens, so that no bucket stands still for
--       longer. What was spent of a window or of a sliding limit counts as spent at the latest slot that can have been promised
--       without Redis.
--
-- cat base.lua common.lua charge.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'ratelimit:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 1 7
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local all, e = rules()
local damaged = 0

local function take(c, p, n)
  if c.kind == 3 then
    if n > 0 then begin(p, floor((now + HORIZON) / c.slice)) end
    p.counts[1] = min(p.counts[1] + n, max(p.counts[1], c.num))
  else
    if c.kind == 1 then p.at = max(p.at, now + HORIZON) end
    p.w = max(min(p.w, c.kind == 1 and 0 or -ceil(c.num * HORIZON / c.den)), p.w - n)
  end
end

for i = 0, #KEYS - 2 do
  local L = all[ARGV[e]]
  local s = level(L, KEYS[i + 2], now)
  if s then
    refill(s, L, now, since)
    for j = 1, #L do take(L[j], s[j], tonumber(ARGV[e + j])) end
    s.dirty = true
    save(s, L, now)
  else
    damaged = damaged + 1
  end
  e = e + 1 + #L
end
return {0, now, redis.call('HINCRBY', KEYS[1], 'n', '1'), damaged}
