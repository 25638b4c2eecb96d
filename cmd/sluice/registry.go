package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// newRegistry holds what every process tells of itself.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	b := buildInfo()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "go": b.Go},
	})
	info.Set(1)
	reg.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
