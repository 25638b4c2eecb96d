package limiter_test

import (
	"context"
	"fmt"
	"time"

	"sluice/limiter"
)

func ExampleParseLimits() {
	limits, err := limiter.ParseLimits("1000/24h sliding, 10/sec burst 20")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limits)
	for _, l := range limits {
		fmt.Println(l.Name(), l.Events, l.Period, l.Burst)
	}

	_, err = limiter.ParseLimits("10/s burst 5 window")
	fmt.Println(err)
	// Output:
	// 10/s burst 20, 1000/d sliding
	// bucket/1s 10 1s 20
	// sliding/1d 1000 24h0m0s 1000
	// limit "10/s burst 5 window": a burst of 5 is less than the 10 that each window brings; write burst 10 or more
}

// Allow what can go now, refuse the rest.
func ExampleLocal_allow() {
	limits, _ := limiter.ParseLimits("2/h")
	local, _ := limiter.NewLocal(limits)

	for range 3 {
		d, err := local.Reserve(context.Background(), "alice", 1, 0)
		fmt.Println(err == nil && d.Verdict == limiter.Go)
	}
	// Output:
	// true
	// true
	// false
}

// Wait for the slot of what can go soon.
func ExampleLocal_reserve() {
	limits, _ := limiter.ParseLimits("20/s leaky")
	local, _ := limiter.NewLocal(limits)

	start := time.Now()
	for range 3 {
		d, _ := local.Reserve(context.Background(), "alice", 1, time.Second)
		if d.Verdict == limiter.Hold {
			time.Sleep(time.Until(d.At))
		}
	}
	fmt.Println(time.Since(start) >= 100*time.Millisecond)
	// Output: true
}

// An event goes when all limits agree, and takes its tokens from each.
func ExampleLocal_severalLimits() {
	limits, _ := limiter.ParseLimits("100/s burst 2, 3/d sliding")
	local, _ := limiter.NewLocal(limits)

	for _, cost := range []int64{2, 2, 1, 4} {
		d, _ := local.Reserve(context.Background(), "alice", cost, -1) // only ask
		if d.Wait == 0 && d.Verdict != limiter.Never {
			d, _ = local.Reserve(context.Background(), "alice", cost, time.Second)
		}
		fmt.Println(cost, d.Verdict == limiter.Go || d.Verdict == limiter.Hold, d.Verdict == limiter.Never)
		time.Sleep(20 * time.Millisecond)
	}
	// Output:
	// 2 true false
	// 2 false false
	// 1 true false
	// 4 false true
}

// Keys of a tier share its limits, a key may have its own, and both may change at any time.
func ExampleLocal_tiers() {
	limits := func(text string) limiter.Limits {
		ls, _ := limiter.ParseLimits(text)
		return ls
	}
	local, _ := limiter.NewLocal(limits("2/h"))
	_ = local.SetTier("gold", limits("4/h"))
	local.Assign("alice", "gold")
	_ = local.SetKey("bob", limits("1/h"))

	hour := func() {
		for _, key := range []string{"alice", "bob", "carol"} {
			allowed := 0
			for range 10 {
				if d, _ := local.Reserve(context.Background(), key, 1, 0); d.Verdict == limiter.Go {
					allowed++
				}
			}
			fmt.Printf("%s: %d of %s\n", key, allowed, local.Limits(key))
		}
	}
	hour()
	_ = local.SetTier("gold", limits("unlimited"))
	local.ResetKey("bob")
	hour()
	// Output:
	// alice: 4 of 4/h
	// bob: 1 of 1/h
	// carol: 2 of 2/h
	// alice: 10 of unlimited
	// bob: 0 of 2/h
	// carol: 0 of 2/h
}

// The model takes the time as an argument.
func ExampleModel() {
	limits, _ := limiter.ParseLimits("10/s burst 3")
	model, _ := limiter.NewModel(limits)

	r := model.Reserve(1_000_000, 6, 1, 200*time.Millisecond)
	fmt.Println(r.Granted, r.Slots, r.Wait)
	fmt.Println(model.State("bucket/1s").Tokens)
	// Output:
	// 3 [1100000 1200000] 300ms
	// -2
}
