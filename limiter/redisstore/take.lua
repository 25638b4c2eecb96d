-- take takes tokens for new events of keys that one bucket alone rules, now or at a slot within the horizon, when all of them get
-- one, or says that they have to wait when none does and none waits yet: that is so of most keys. What it doesn't answer is for
-- reserve.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}, then those of further shards, which only a single Redis may have in one call; then per
--       entry: ratelimit:{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then
--       number of further shards, the epoch id of each, most events of a key that wait (-1: any), then per run of entries that
--       are alike: how many there are; the place of their shard, from 1; their rule; n, the number of events of each; cost, the
--       tokens of each event; horizon us
-- reply {1, place of each shard whose epoch is another} nothing was written; else {0, now, per shard: calls, then per entry
--       the whole tokens before, if all were granted now; {tokens and rest before, granted now, then in how many us each promised
--       slot is}; {tokens and rest before, -1: all are to be parked, us until one could go}; or -1: nothing was taken or
--       written, and nothing is known}
-- Invariant: what it answers, reserve would. Nothing to a key with a lane, which is one with an entry in due, or with events on
--       their way into one, or whose receiver is away.
--
-- cat base.lua take.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 0 -1 1 1 1 1 1 1000000
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
local maxWaiting = tonumber(ARGV[first])

-- book answers for a bucket with w + f/den tokens how many events go now and in how many us each of the others does; nil if that
-- is too late for one of them, and in how many us the first one goes if it is so for all.
local function book(w, f)
  local granted = min(n, max(0, floor(w / price)))
  local out, left = {w, f, granted}, w - granted * price
  for _ = granted + 1, n do
    local us = ceil(((price - left) * den - f) / num)
    if us > horizon then return nil, granted == 0 and #out == 3 and us end
    out[#out + 1] = us
    left = left - price
  end
  return out
end

-- refuse lets n events wait of which the first could go in us, of a key whose bucket has w + f/den tokens and is full at full. It
-- answers as take does.
local function refuse(key, w, f, us, exp, full)
  if price > burst or maxWaiting >= 0 and n > maxWaiting or c.maxWait >= 0 and w + c.maxWait < n * price then return -1 end
  local v = call('HMGET', key, 'extra', 'openingExtra')
  if v[1] and v[1] ~= '0' or not whole(v[2]) then return -1 end
  local set, extra, need = {'opened', d(now + 2000000), 'opening', d(n)}, n * (price - 1), max(full, now + 2000000)
  if extra ~= whole(v[2]) then set[5], set[6] = 'openingExtra', d(extra) end
  if exp < need then
    local ttl = min(max(need + margin, exp) - now, MAX_TTL)
    set[#set + 1], set[#set + 2] = 'exp', d(now + ttl)
    call('HSET', key, unpack(set))
    call('PEXPIRE', key, d(ceil(ttl / 1000)))
  else
    call('HSET', key, unpack(set))
  end
  return {w, f, -1, us}
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
  local want, answer, us = n * price, w, nil
  if want > w then answer, us = book(w, f) end
  if due and call('ZSCORE', due, string.match(key, '[^:]*$')) then return -1 end
  if not answer then return us and refuse(key, w, f, us, exp, now + ceil(missing / num)) or -1 end

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

local k, e, r = 2 * #sinces, first + 1, 2 + #sinces
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
