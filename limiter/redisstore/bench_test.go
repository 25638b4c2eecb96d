package redisstore

import (
	"fmt"
	"strings"
	"testing"
)

func BenchmarkReserveScript(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			r := newRig(b, "1000000/s")
			r.now = 0
			var batches [][]reservation
			for j := range 40 {
				var batch []reservation
				for i := 0; len(batch) < n; i++ {
					k := fmt.Sprintf("k%d-%d", j, i)
					if r.shard(k) == r.shards[0] {
						batch = append(batch, reservation{key: k, rule: r.rule(k, ""), cost: 1})
					}
				}
				batches = append(batches, batch)
			}
			r.rdb.ConfigResetStat(b.Context())
			b.ResetTimer()
			for i := range b.N {
				if _, err := r.shards[0].bundle.runReserve(batches[i%40]); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "us/decision")
			info := r.rdb.Info(b.Context(), "commandstats").Val()
			for _, line := range strings.Split(info, "\r\n") {
				if strings.HasPrefix(line, "cmdstat_evalsha") {
					var calls, usec int64
					fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,usec=%d", &calls, &usec)
					b.ReportMetric(float64(usec)/float64(b.N*n), "redis-us/decision")
				}
			}
		})
	}
}
