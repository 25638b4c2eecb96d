-- take takes tokens for new events of keys that one bucket alone rules, now or at a slot within the horizon, when all of them get
-- one: those of most keys. What it doesn't answer is for reserve.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}, then those of further shards, which only a single Redis may have in one call; then per
--       entry: ratelimit:{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       number of further shards, the epoch id of each, then per run of entries that are alike: how many there are; the place
--       of their shard, from 1; their rule; n, the number of events of each; cost, the tokens of each event; horizon us
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, per shard: calls, then per entry
--       the whole tokens before, if all were granted now; {tokens and rest before, granted now, then in how many us each promised
--       slot is}; or -1: nothing was taken, and nothing is known}
-- Invariant: what it grants and promises, reserve would. Nothing to a key with a lane, which is one with an entry in due, or
--       with events on their way into one, or whose receiver is away.
--
-- cat base.lua take.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 0 1 1 1 1 1 1000000
local all, a = rules()
local sinces, first, others = shards(a, 2)
if others then return others end
local now = clock(tonumber(ARGV[2]))
local nows = d(now)
local lanes, calls, reply = {}, {}, {0, now}
for i = 1, #sinces do
  lanes[i] = redis.call('EXISTS', KEYS[2 * i]) == 1
  reply[2 + i] = 0
end
local call, pcall, tonumber, ceil = redis.call, redis.pcall, tonumber, math.ceil

-- later says whether a time that is stored is to come, or can't be read.
local function later(t)
  t = whole(t)
  return not t or t > now
end

-- text is d for numbers that come again and again: most buckets are full.
local texts = {}
local function text(n)
  local t = texts[n]
  if not t then
    t = d(n)
    texts[n] = t
  end
  return t
end

-- Of the run at hand: its bucket, the events of an entry, and when the shard's buckets were lost.
local c, num, den, burst, n, price, horizon, margin, since, due

-- book answers for a bucket with w + f/den tokens how many events go now and in how many us each of the others does; nil if that
-- is too late for one of them.
local function book(w, f)
  local granted = min(n, max(0, floor(w / price)))
  local out, left = {w, f, granted}, w - granted * price
  for _ = granted + 1, n do
    local us = ceil(((price - left) * den - f) / num)
    if us > horizon then return nil end
    out[#out + 1] = us
    left = left - price
  end
  return out
end

-- pay lets the bucket of a key pay for an entry, and answers as take does.
local function pay(key)
  local v = pcall('HMGET', key, c.tokens, c.frac, c.at, c.denField, 'exp', 'opened', 'closedUntil')
  if v.err or v[6] and later(v[6]) or v[7] and later(v[7]) then return -1 end
  local w, f, at, known, exp = tonumber(v[1]), tonumber(v[2]), tonumber(v[3]), v[4], tonumber(v[5] or 0)
  if not known then
    if v[1] or v[2] or v[3] or exp ~= 0 or since > now then return -1 end
    w, f, at = since == 0 and burst or 0, 0, since
  elseif not (w and f and at and exp) or tonumber(known) ~= den or w % 1 + f % 1 + at % 1 + exp % 1 ~= 0
    or f < 0 or f >= den or at > now or w < 0 and w * den + f < -num * HORIZON then
    return -1
  end
  local missing, gone = (burst - w) * den - f, now - at -- in tokens / den
  if gone >= ceil(missing / num) then -- first, so that gone * num can't overflow
    w, f, missing = burst, 0, 0
  else
    local u = f + gone * num
    f, missing = u % den, missing - gone * num
    w = w + (u - f) / den
  end
  local want, answer = n * price, w
  if want > w then answer = book(w, f) end
  if not answer or due and call('ZSCORE', due, string.match(key, '[^:]*$')) then return -1 end

  local need, tokens, frac = now + ceil((missing + want * den) / num), text(w - want), text(f)
  if not known or exp < need then
    local ttl = min(max(need + margin, exp) - now, MAX_TTL)
    call('HSET', key, c.tokens, tokens, c.frac, frac, c.at, nows, c.denField, d(den), 'exp', d(now + ttl))
    call('PEXPIRE', key, d(ceil(ttl / 1000)))
  else
    call('HSET', key, c.tokens, tokens, c.frac, frac, c.at, nows)
  end
  return answer
end

local k, e, r = 2 * #sinces, first, 2 + #sinces
while k < #KEYS do
  local entries, place, L = tonumber(ARGV[e]), tonumber(ARGV[e + 1]), all[ARGV[e + 2]]
  n, price, horizon = tonumber(ARGV[e + 3]), tonumber(ARGV[e + 4]), tonumber(ARGV[e + 5])
  c, margin, since, due = L[1], L.margin, sinces[place], lanes[place] and KEYS[2 * place]
  num, den, burst = c.num, c.den, c.burst
  for i = 1, entries do
    local answer = pay(KEYS[k + i])
    reply[r + i] = answer
    if answer ~= -1 then calls[place] = true end
  end
  k, r, e = k + entries, r + entries, e + 6
end
for i = 1, #sinces do
  if calls[i] then reply[2 + i] = call('HINCRBY', KEYS[2 * i - 1], 'n', '1') end
end
return reply
