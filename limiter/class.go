package limiter

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// MaxHorizon is the longest time ahead for which tokens are promised.
const MaxHorizon = time.Second

// maxExact is the greatest integer up to which the arithmetic in Redis, on doubles, is exact.
const maxExact = 1<<53 - 1

// Forever stands for a time that doesn't come: what a paused limit makes one wait, and what is too long to be said.
const Forever = time.Duration(math.MaxInt64)

// Class is a limit as the arithmetic needs it: on average Num/Den tokens accrue per microsecond, at most Burst at once.
//
//	Bucket   Num/Den in lowest terms
//	Leaky    the same with a Burst of 1
//	Window   Num tokens at the end of each window of Den microseconds
//	Sliding  at most Num = Burst tokens in any Den microseconds
//
// A paused limit has Num 0, Den 1 and the kind Bucket. Make a class with [Limit.Class]: then no step of the scripts'
// arithmetic leaves the integers that a double holds exactly.
type Class struct {
	Num, Den, Burst int64
	Kind            Kind
}

// Class is the limit in microseconds. A rate that the exact arithmetic has no room for beside its burst is rounded down
// by at most 0.1 %; one that would lose more, or that is out of range, is an error that says what to write instead. An
// unlimited limit has no class: its events don't come to a bucket.
func (l Limit) Class() (Class, error) {
	c, err := l.class()
	if err != nil {
		return Class{}, fmt.Errorf("limit %q: %w", l, err)
	}
	return c, nil
}

// classIfLimited checks a limit that may be unlimited.
func (l Limit) classIfLimited() (Class, error) {
	if l.Unlimited {
		return Class{}, nil
	}
	return l.class()
}

func (l Limit) class() (Class, error) {
	period := int64(l.Period / time.Microsecond)
	switch {
	case l.Unlimited:
		return Class{}, errors.New("an unlimited limit has no bucket; ask for none")
	case l.Burst < 0 || l.Burst > MaxBurst || l.Burst == 0 && !l.Paused():
		return Class{}, fmt.Errorf("a burst of %d is out of range; write one from 1 to %d", l.Burst, MaxBurst)
	case l.Paused() && l.Burst == 0:
		return Class{Num: 0, Den: 1, Burst: MaxBurst}, nil // so that a pause takes no tokens away
	case l.Paused():
		return Class{Num: 0, Den: 1, Burst: l.Burst}, nil
	case l.Events < 0:
		return Class{}, fmt.Errorf("%d events are less than none; write 0 to pause", l.Events)
	case l.Period <= 0 || l.Period > MaxPeriod:
		return Class{}, fmt.Errorf("the time %v is out of range; write one from 1ms to %s", l.Period, periodText(MaxPeriod))
	case l.Period%time.Microsecond != 0:
		return Class{}, fmt.Errorf("the time %v is not a whole number of microseconds; write whole ms", l.Period)
	case l.Events > period:
		return Class{}, errors.New("the rate is more than the most, 1000000/s; write a lower one")
	}
	switch l.Kind {
	case Bucket:
		return l.evenly()
	case Leaky:
		if l.Burst != 1 {
			return Class{}, fmt.Errorf("a leaky limit holds 1, not %d; write a burst of 1", l.Burst)
		}
		return l.evenly()
	case Window:
		return l.windows()
	case Sliding:
		if l.Burst != l.Events {
			return Class{}, fmt.Errorf("a sliding limit holds its %d events, not %d; write a burst of %[1]d", l.Events, l.Burst)
		}
		return Class{Num: l.Events, Den: period, Burst: l.Burst, Kind: Sliding}, nil
	default:
		return Class{}, fmt.Errorf("the kind %d is unknown; write bucket, window, leaky or sliding", l.Kind)
	}
}

// windows is the class of a window limit in range.
func (l Limit) windows() (Class, error) {
	c := Class{Num: l.Events, Den: int64(l.Period / time.Microsecond), Burst: l.Burst, Kind: Window}
	if l.Burst < l.Events {
		return Class{}, fmt.Errorf("a burst of %d is less than the %d that each window brings; write burst %[2]d or more",
			l.Burst, l.Events)
	}
	if most := maxRefillMicros / c.Den; ceilDiv(c.Burst, c.Num) > most {
		return Class{}, l.tooSlow(most * c.Num)
	}
	return c, nil
}

const maxRefillMicros = int64(MaxRefill / time.Microsecond)

// tooSlow refuses a burst of which at most so much comes back within MaxRefill.
func (l Limit) tooSlow(most int64) error {
	return fmt.Errorf("a burst of %d is too large for so slow a rate: what was spent is known for %s at most; write burst %d or less",
		l.Burst, periodText(MaxRefill), most)
}

// evenly is the class of a limit in range whose tokens accrue evenly.
func (l Limit) evenly() (Class, error) {
	period := int64(l.Period / time.Microsecond)
	g := gcd(l.Events, period)
	exact := Class{Num: l.Events / g, Den: period / g, Burst: l.Burst, Kind: l.Kind}
	// In both refusals the burst is what takes the room: a rate with so large a Num that its own share would fill it is always
	// quick enough, and close enough after rounding.
	room := func() int64 { return (maxExact-exact.Num*horizonMicros)/exact.Den - 1 }
	if most := exact.Tokens(MaxRefill); l.Burst > most {
		return Class{}, l.tooSlow(min(most, room()))
	}
	if exact.exact() {
		return exact, nil
	}
	c := exact.roundedDown()
	if !c.within(exact) {
		return Class{}, fmt.Errorf("a burst of %d is too large for so slow a rate; write burst %d or less", l.Burst, room())
	}
	return c, nil
}

const horizonMicros = int64(MaxHorizon / time.Microsecond)

// exact says that the greatest number that the scripts make of the class, (Burst+1)*Den + Num*horizon, is exact.
func (c Class) exact() bool {
	hi, lo := bits.Mul64(uint64(c.Burst)+1, uint64(c.Den))
	hi2, lo2 := bits.Mul64(uint64(c.Num), uint64(horizonMicros))
	sum, carry := bits.Add64(lo, lo2, 0)
	return hi == 0 && hi2 == 0 && carry == 0 && sum <= maxExact
}

// roundedDown is the class with the greatest Den that fits and the greatest Num that makes the rate no higher.
func (c Class) roundedDown() Class {
	at := func(den int64) Class {
		hi, lo := bits.Mul64(uint64(c.Num), uint64(den))
		num, _ := bits.Div64(hi, lo, uint64(c.Den)) // fits: at most den, for the rate is at most 1
		return Class{Num: int64(num), Den: den, Burst: c.Burst, Kind: c.Kind}
	}
	// A Den of 1 always fits, one above high never: there not even Burst's share has room.
	low, high := int64(1), min(c.Den, maxExact/(c.Burst+1))
	for low < high {
		middle := low + (high-low+1)/2
		if at(middle).exact() {
			low = middle
		} else {
			high = middle - 1
		}
	}
	rounded := at(low)
	g := gcd(rounded.Num, rounded.Den)
	rounded.Num /= g
	rounded.Den /= g
	return rounded
}

// within says that the rate of c is below that of exact by at most 0.1 %: c/exact >= 999/1000.
func (c Class) within(exact Class) bool {
	hi, lo := bits.Mul64(uint64(c.Num)*1000, uint64(exact.Den))
	hi2, lo2 := bits.Mul64(uint64(exact.Num)*999, uint64(c.Den))
	return hi > hi2 || hi == hi2 && lo >= lo2
}

// gcd is the greatest common divisor; b > 0.
func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Paused says that nothing ever accrues.
func (c Class) Paused() bool { return c.Num <= 0 }

// Wait is the time until a bucket or leaky limit that now holds tokens + frac/Den can pay for n tokens: not negative, rounded up to a
// microsecond, so that who waits so long finds them. tokens may be negative (promised already). [Forever] if that time
// is too long to be said, or never comes.
func (c Class) Wait(tokens, frac, n int64) time.Duration {
	if n <= tokens {
		return 0
	}
	// (n-tokens)*Den - frac in 128 bits: n-tokens is right as an unsigned number even where it overflows a signed one.
	hi, lo := bits.Mul64(uint64(n)-uint64(tokens), uint64(c.Den))
	lo, borrow := bits.Sub64(lo, uint64(frac), 0)
	hi, _ = bits.Sub64(hi, uint64(frac>>63), borrow)
	if int64(hi) < 0 || hi == 0 && lo == 0 {
		return 0
	}
	return ceilMicros(hi, lo, c.Num)
}

// Tokens is the number of whole tokens that accrue in d on average, at most 2^53-1, the most the scripts take.
func (c Class) Tokens(d time.Duration) int64 {
	if c.Num <= 0 || c.Den <= 0 || d <= 0 {
		return 0
	}
	const nanosPerMicro = uint64(time.Microsecond)
	hi, lo := bits.Mul64(uint64(c.Num), uint64(d))
	hi, rem := hi/nanosPerMicro, hi%nanosPerMicro
	lo, _ = bits.Div64(rem, lo, nanosPerMicro)
	if hi >= uint64(c.Den) {
		return maxExact
	}
	n, _ := bits.Div64(hi, lo, uint64(c.Den))
	return int64(min(n, maxExact))
}

// Every is the time in which one token accrues on average, rounded up to a microsecond; [Forever] if paused.
func (c Class) Every() time.Duration {
	return ceilMicros(0, uint64(c.Den), c.Num)
}

// ceilMicros is ceil((hi:lo)/num) microseconds, or Forever.
func ceilMicros(hi, lo uint64, num int64) time.Duration {
	if num <= 0 || hi >= uint64(num) {
		return Forever
	}
	micros, rem := bits.Div64(hi, lo, uint64(num))
	if rem > 0 {
		micros++ // can't wrap: with num > 1 the quotient leaves room, with num 1 nothing remains
	}
	if micros > uint64(Forever/time.Microsecond) {
		return Forever
	}
	return time.Duration(micros) * time.Microsecond
}
