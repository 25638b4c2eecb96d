package redisstore

import (
	"math"
	"math/big"
	"math/rand/v2"
	"time"

	"sluice/limiter"
)

// model is the bucket in big integers, written from the definition: the level is kept in units of 1/den token.
type model struct {
	class   limiter.Class
	used    bool
	den     int64
	level   *big.Int
	updated int64
}

func (m *model) reserve(now, n, horizon int64) (granted, scheduled, tokens, frac int64) {
	den, num := big.NewInt(m.class.Den), big.NewInt(m.class.Num)
	full := new(big.Int).Mul(big.NewInt(m.class.Burst), den)
	level, updated := m.now(now)
	if level.Cmp(full) > 0 {
		level = full
	}
	usable := new(big.Int).Set(level)
	if updated > now { // the clock runs behind: nothing from the future
		usable.Sub(usable, new(big.Int).Mul(num, big.NewInt(updated-now)))
	}
	granted = clamp(floorDiv(usable, den), 0, n)
	within := new(big.Int).Add(usable, new(big.Int).Mul(num, big.NewInt(horizon)))
	total := max(granted, clamp(floorDiv(within, den), 0, n))

	q, r := new(big.Int).DivMod(usable, den, new(big.Int))
	tokens, frac = q.Int64(), r.Int64()
	rebased := m.used && m.updated-now > clockTolerance.Microseconds()
	if total > 0 || rebased {
		m.level = new(big.Int).Sub(level, new(big.Int).Mul(big.NewInt(total), den))
		m.updated, m.den, m.used = updated, m.class.Den, true
	}
	return granted, total - granted, tokens, frac
}

// now is the level refilled to now, and the time it holds for.
func (m *model) now(now int64) (*big.Int, int64) {
	den := big.NewInt(m.class.Den)
	if !m.used {
		return new(big.Int).Mul(big.NewInt(m.class.Burst), den), now
	}
	level := new(big.Int).Set(m.level)
	if m.den != m.class.Den { // only the fraction is rescaled, down
		whole, part := new(big.Int).DivMod(level, big.NewInt(m.den), new(big.Int))
		scaled := int64(math.Floor(float64(part.Int64()) / float64(m.den) * float64(m.class.Den)))
		level.Add(whole.Mul(whole, den), big.NewInt(min(m.class.Den-1, scaled)))
	}
	updated := m.updated
	if updated-now > clockTolerance.Microseconds() {
		updated = now
	}
	// A debt that a second doesn't pay off was promised under a faster rate, for a second at most.
	if second := new(big.Int).Mul(big.NewInt(m.class.Num), big.NewInt(1_000_000)); level.Cmp(second.Neg(second)) < 0 {
		level, updated = new(big.Int), min(updated, now)+1_000_000
	}
	if updated >= now {
		return level, updated
	}
	return level.Add(level, new(big.Int).Mul(big.NewInt(m.class.Num), big.NewInt(now-updated))), now
}

func floorDiv(a, b *big.Int) int64 {
	q, _ := new(big.Int).DivMod(a, b, new(big.Int)) // Euclidean: rounds down for a positive divisor
	if !q.IsInt64() {
		return math.MaxInt64
	}
	return q.Int64()
}

func clamp(x, low, high int64) int64 { return max(low, min(x, high)) }

// randomClasses are limits of all sizes, up to where the products reach 2^53.
func randomClasses(rnd *rand.Rand, n int) []limiter.Class {
	var out []limiter.Class
	for len(out) < n {
		limit := limiter.Limit{
			Events: 1 + rnd.Int64N(1<<rnd.IntN(20)),
			Period: []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour}[rnd.IntN(5)],
			Burst:  1 + rnd.Int64N(1<<rnd.IntN(31)),
		}
		if c, err := limit.Class(); err == nil {
			out = append(out, c)
		}
	}
	return out
}

// randomGap is a time that matters for the class: some tokens' time, or just any.
func randomGap(rnd *rand.Rand, c limiter.Class) int64 {
	token := c.Every().Microseconds()
	switch rnd.IntN(4) {
	case 0:
		return 0
	case 1:
		return rnd.Int64N(token + 2)
	case 2:
		return min(token*rnd.Int64N(20), 1<<41)
	default:
		return rnd.Int64N(2_000_000)
	}
}
