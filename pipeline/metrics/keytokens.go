package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice/limiter"
)

var keyTokensDesc = prometheus.NewDesc("sluice_key_tokens",
	"Whole tokens that a key has left at the moment, of the limit with the fewest; negative: promised already.", []string{"key"}, nil)

// keyTokens asks with every scrape.
type keyTokens struct {
	keys []string
	left func(keys []string) map[string]int64
}

// RegisterKeyTokens shows what a few keys have left. left is called with every scrape, answers within a second or so, and
// leaves out the keys whose tokens aren't known or aren't counted: these aren't shown.
func RegisterKeyTokens(reg prometheus.Registerer, keys []string, left func(keys []string) map[string]int64) {
	reg.MustRegister(&keyTokens{keys, left})
}

func (k *keyTokens) Describe(to chan<- *prometheus.Desc) { to <- keyTokensDesc }

func (k *keyTokens) Collect(to chan<- prometheus.Metric) {
	for key, tokens := range k.left(k.keys) {
		to <- prometheus.MustNewConstMetric(keyTokensDesc, prometheus.GaugeValue, float64(tokens), limiter.KeyText(key))
	}
}
