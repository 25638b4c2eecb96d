package limiter

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func big64(n int64) *big.Int { return big.NewInt(n) }

func mul(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }

// bigFits is the condition of exact arithmetic: (burst+1)*den + num*1000000 <= 2^53-1.
func bigFits(num, den *big.Int, burst int64) bool {
	sum := mul(big64(burst+1), den)
	sum.Add(sum, mul(num, big64(1_000_000)))
	return sum.Cmp(big64(1<<53-1)) <= 0
}

func TestClassIsTheRateInLowestTerms(t *testing.T) {
	t.Parallel()
	tests := []struct {
		limit string
		want  Class
	}{
		{"100/s", Class{1, 10_000, 100, Bucket}},
		{"3/s", Class{3, 1_000_000, 3, Bucket}},
		{"5/m", Class{1, 12_000_000, 5, Bucket}},
		{"1000000/s", Class{1, 1, 1_000_000, Bucket}},
		{"1000/ms burst 2147483648", Class{1, 1, MaxBurst, Bucket}},
		{"7/1500ms", Class{7, 1_500_000, 7, Bucket}},
		{"1/365d", Class{1, 31_536_000_000_000, 1, Bucket}},
		{"999983/s burst 5", Class{999_983, 1_000_000, 5, Bucket}},
		{"0 burst 20", Class{0, 1, 20, Bucket}},
		{"0", Class{0, 1, MaxBurst, Bucket}},
	}
	for _, tt := range tests {
		l, err := ParseLimit(tt.limit)
		if err != nil {
			t.Errorf("ParseLimit(%q): %v", tt.limit, err)
			continue
		}
		if got, err := l.Class(); err != nil || got != tt.want {
			t.Errorf("class of %q = %+v, %v; want %+v", tt.limit, got, err, tt.want)
		}
	}
}

func TestExactNumbersEndAt2To53(t *testing.T) {
	t.Parallel()
	most := Class{Num: 1, Den: 1<<53 - 1 - 1_000_000}
	if more := (Class{Num: 1, Den: most.Den + 1}); !most.exact() || more.exact() {
		t.Errorf("2^53-1 fits: %v, 2^53 fits: %v; want true, false", most.exact(), more.exact())
	}
}

func TestClassOfLimitOutOfRangeIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		limit Limit
		want  string
	}{
		{Limit{Unlimited: true}, "no bucket"},
		{Limit{Events: -1, Period: time.Second, Burst: 1}, "write 0 to pause"},
		{Limit{Events: 1, Period: time.Second}, "from 1 to"},
		{Limit{Events: 1, Period: time.Second, Burst: -1}, "from 1 to"},
		{Limit{Events: 1, Period: time.Second, Burst: MaxBurst + 1}, "from 1 to"},
		{Limit{Burst: -1}, "from 1 to"},
		{Limit{Events: 1, Burst: 1}, "out of range"},
		{Limit{Events: 1, Period: -time.Second, Burst: 1}, "out of range"},
		{Limit{Events: 1, Period: MaxPeriod + 1000, Burst: 1}, "out of range"},
		{Limit{Events: 1, Period: 1500, Burst: 1}, "whole ms"},
		{Limit{Events: 2, Period: time.Microsecond, Burst: 1}, "1000000/s"},
		{Limit{Events: math.MaxInt64, Period: MaxPeriod, Burst: 1}, "1000000/s"},
		{Limit{Events: 1, Period: MaxPeriod, Burst: MaxBurst}, "write burst 100 or less"},
	}
	for _, tt := range tests {
		got, err := tt.limit.Class()
		if err == nil || !strings.Contains(err.Error(), tt.want) || got != (Class{}) {
			t.Errorf("class of %+v = %+v, error %v; want an error that says %q", tt.limit, got, err, tt.want)
		}
	}
}

// checkClass holds a limit's class against its definition in big integers.
func checkClass(t *testing.T, l Limit) {
	t.Helper()
	c, err := l.Class()
	events, period := big64(l.Events), big64(l.Period.Microseconds())
	g := new(big.Int).GCD(nil, nil, events, period)
	num, den := new(big.Int).Div(events, g), new(big.Int).Div(period, g)
	if refill := mul(big64(l.Burst), period); refill.Cmp(mul(events, big64(MaxRefill.Microseconds()))) > 0 {
		if err == nil {
			t.Fatalf("class of %v = %+v; want an error, since its refill takes longer than %s", l, c, MaxRefill)
		}
		return
	}
	if bigFits(num, den, l.Burst) {
		if err != nil || big64(c.Num).Cmp(num) != 0 || big64(c.Den).Cmp(den) != 0 || c.Burst != l.Burst {
			t.Fatalf("class of %v = %+v, %v; want the exact %v/%v", l, c, err, num, den)
		}
		return
	}

	// The greatest den' that fits, by bisection on the definition.
	numAt := func(d *big.Int) *big.Int { n := mul(num, d); return n.Div(n, den) }
	low, high := big64(1), new(big.Int).Set(den)
	for low.Cmp(high) < 0 {
		middle := new(big.Int).Add(low, high)
		middle.Add(middle, big64(1)).Rsh(middle, 1)
		if bigFits(numAt(middle), middle, l.Burst) {
			low = middle
		} else {
			high = middle.Sub(middle, big64(1))
		}
	}
	want := new(big.Rat).SetFrac(numAt(low), low)
	rate := new(big.Rat).SetFrac(events, period)
	least := new(big.Rat).Mul(rate, big.NewRat(999, 1000))
	if (err == nil) != (want.Cmp(least) >= 0) {
		t.Fatalf("class of %v = %+v, %v; the best rate that fits is %v of %v", l, c, err, want, rate)
	}
	if err != nil {
		return
	}
	got := big.NewRat(c.Num, c.Den)
	if got.Cmp(want) != 0 || got.Cmp(rate) > 0 || got.Num().Int64() != c.Num || c.Burst != l.Burst {
		t.Fatalf("class of %v = %+v, want %v in lowest terms and not above %v", l, c, want, rate)
	}
	if !bigFits(big64(c.Num), big64(c.Den), c.Burst) {
		t.Fatalf("class of %v = %+v does not fit", l, c)
	}
}

// anyLimit spreads limits evenly over the orders of magnitude of the whole range.
func anyLimit(r *rand.Rand) Limit {
	upTo := func(most int64) int64 {
		return min(most, 1+int64(math.Exp(r.Float64()*math.Log(float64(most)))))
	}
	period := upTo(int64(MaxPeriod / time.Microsecond))
	return Limit{Events: upTo(period), Period: time.Duration(period) * time.Microsecond, Burst: upTo(MaxBurst)}
}

func TestClassOfAnyLimitIsTheBestThatFits(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	exact, rounded, refused := 0, 0, 0
	for range 20_000 {
		l := anyLimit(r)
		checkClass(t, l)
		switch _, err := l.Class(); {
		case err != nil:
			refused++
		case fitsUnrounded(l):
			exact++
		default:
			rounded++
		}
	}
	if exact < 100 || rounded < 100 || refused < 100 {
		t.Errorf("%d exact, %d rounded, %d refused: the limits tried leave a case out", exact, rounded, refused)
	}
}

func TestBurstAdvisedForAnyLimitIsAccepted(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		l := anyLimit(r)
		_, err := l.Class()
		if err == nil {
			continue
		}
		_, advice, _ := strings.Cut(err.Error(), "write burst ")
		digits, _, _ := strings.Cut(advice, " ")
		if l.Burst, err = parseWhole("the advice", digits); err != nil {
			t.Fatalf("class of %+v: no burst advised", l)
		}
		if _, err := l.Class(); err != nil {
			t.Fatalf("the burst that was advised is refused: %v", err)
		}
	}
}

func FuzzClass(f *testing.F) {
	f.Add(int64(1), int64(31_536_000_000_000), int64(285))
	f.Add(int64(31_535_999_999_999), int64(31_536_000_000_000), MaxBurst)
	f.Add(int64(9_000_000_001), int64(31_536_000_000_000), MaxBurst)
	f.Fuzz(func(t *testing.T, events, period, burst int64) {
		if period < 1 || period > int64(MaxPeriod/time.Microsecond) || events < 1 || events > period ||
			burst < 1 || burst > MaxBurst {
			return
		}
		checkClass(t, Limit{Events: events, Period: time.Duration(period) * time.Microsecond, Burst: burst})
	})
}

func TestWaitGivesTheSlotsOfTheVectors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name            string
		class           Class
		tokens, frac, n int64
		want            time.Duration
	}{
		{"3/s, empty, first slot", Class{3, 1_000_000, 2, Bucket}, 2, 0, 3, 333_334 * time.Microsecond},
		{"3/s, empty, second slot", Class{3, 1_000_000, 2, Bucket}, 2, 0, 4, 666_667 * time.Microsecond},
		{"3/s, empty, third slot", Class{3, 1_000_000, 2, Bucket}, 2, 0, 5, time.Second},
		{"3/s, one microsecond short", Class{3, 1_000_000, 5, Bucket}, 0, 999_999, 1, time.Microsecond},
		{"3/s, in debt", Class{3, 1_000_000, 2, Bucket}, -3, 0, 1, 1_333_334 * time.Microsecond},
		{"enough", Class{3, 1_000_000, 5, Bucket}, 5, 0, 5, 0},
		{"more than enough", Class{3, 1_000_000, 5, Bucket}, 5, 1, -7, 0},
		{"1/day", Class{1, 86_400_000_000, 1, Bucket}, 0, 0, 1, 24 * time.Hour},
		{"paused", Class{0, 1, 5, Bucket}, 0, 0, 1, Forever},
		{"paused, but tokens are left", Class{0, 1, 5, Bucket}, 1, 0, 1, 0},
		{"longer than can be said", Class{1, 31_536_000_000_000, 1, Bucket}, -1000, 0, 1, Forever},
		{"the whole range", Class{1, 1 << 53, 1, Bucket}, math.MinInt64, 0, math.MaxInt64, Forever},
	}
	for _, tt := range tests {
		if got := tt.class.Wait(tt.tokens, tt.frac, tt.n); got != tt.want {
			t.Errorf("%s: %+v.Wait(%d, %d, %d) = %v, want %v", tt.name, tt.class, tt.tokens, tt.frac, tt.n, got, tt.want)
		}
	}
}

// bigCeilMicros is ceil(a/b) microseconds as a duration, Forever if it can't be one, never negative.
func bigCeilMicros(a *big.Int, b int64) time.Duration {
	if a.Sign() <= 0 {
		return 0
	}
	if b == 0 {
		return Forever
	}
	q, rem := new(big.Int).QuoRem(a, big64(b), new(big.Int))
	if rem.Sign() > 0 {
		q.Add(q, big64(1))
	}
	q.Mul(q, big64(1000))
	if !q.IsInt64() {
		return Forever
	}
	return time.Duration(q.Int64())
}

func checkArithmetic(t *testing.T, c Class, tokens, frac, n int64, d time.Duration) {
	t.Helper()
	need := new(big.Int).Sub(big64(n), big64(tokens))
	if need.Sign() > 0 {
		need.Mul(need, big64(c.Den)).Sub(need, big64(frac))
	}
	if got, want := c.Wait(tokens, frac, n), bigCeilMicros(need, c.Num); got != want {
		t.Fatalf("%+v.Wait(%d, %d, %d) = %d, want %d", c, tokens, frac, n, got, want)
	}
	if got, want := c.Every(), bigCeilMicros(big64(c.Den), c.Num); got != want {
		t.Fatalf("%+v.Every() = %d, want %d", c, got, want)
	}
	want := int64(0)
	if d > 0 {
		q := mul(big64(c.Num), big64(int64(d)))
		q.Div(q, mul(big64(c.Den), big64(1000)))
		want = 1<<53 - 1
		if q.IsInt64() {
			want = min(want, q.Int64())
		}
	}
	if got := c.Tokens(d); got != want {
		t.Fatalf("%+v.Tokens(%d) = %d, want %d", c, d, got, want)
	}
}

// anyInt64 spreads numbers of both signs over the orders of magnitude.
func anyInt64(r *rand.Rand) int64 { return int64(r.Uint64()) >> r.IntN(64) }

func TestArithmeticAgreesWithBigIntegers(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	for range 100_000 {
		c := Class{Num: anyInt64(r) & math.MaxInt64, Den: max(1, anyInt64(r)&math.MaxInt64), Burst: 1}
		checkArithmetic(t, c, anyInt64(r), r.Int64N(c.Den), anyInt64(r), time.Duration(anyInt64(r)))
	}
}

func FuzzArithmetic(f *testing.F) {
	const most = math.MaxInt64
	f.Add(int64(1), int64(1), int64(most), int64(0), int64(math.MinInt64), int64(most))
	f.Add(int64(1), int64(most), int64(math.MinInt64), int64(0), int64(most), int64(most))
	f.Add(int64(most), int64(1), int64(0), int64(-1), int64(1), int64(most))
	f.Add(int64(2), int64(3), int64(0), int64(math.MinInt64), int64(1), int64(-1))
	f.Add(int64(0), int64(1), int64(0), int64(0), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, num, den, tokens, frac, n, d int64) {
		if num < 0 || den < 1 {
			return
		}
		checkArithmetic(t, Class{Num: num, Den: den, Burst: 1}, tokens, frac, n, time.Duration(d))
	})
}

// The two halves of the arithmetic agree: after the wait the tokens are there, and a microsecond earlier they weren't.
func TestAfterTheWaitTheTokensAreThere(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	for range 20_000 {
		c, err := anyLimit(r).Class()
		if err != nil {
			continue
		}
		n := 1 + r.Int64N(1000)
		wait := c.Wait(0, 0, n)
		if wait == Forever {
			continue
		}
		if got := c.Tokens(wait); got < n {
			t.Fatalf("%+v: %d of %d tokens after %v", c, got, n, wait)
		}
		if got := c.Tokens(wait - time.Microsecond); got >= n {
			t.Fatalf("%+v: %d tokens already a microsecond before %v", c, got, wait)
		}
	}
}

func TestZeroClassLetsNothingPass(t *testing.T) {
	t.Parallel()
	var zero Class
	if !zero.Paused() || zero.Tokens(time.Hour) != 0 || zero.Every() != Forever {
		t.Errorf("the zero class: paused %v, %d tokens an hour, one every %v; want a pause",
			zero.Paused(), zero.Tokens(time.Hour), zero.Every())
	}
}
