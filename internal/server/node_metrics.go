package server

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/control"
	"github.com/outcrop-cloud/outcrop/internal/schedule"
)

// scrapePatience bounds how long a scrape may wait for the fleet.
const scrapePatience = 10 * time.Second

// nodeLabel is the canonical label of a node in metrics; its value is the node's
// id (contract N-08).
const nodeLabel = "node_name"

// nodeCollector shows the fleet as placement sees it at the moment of the scrape.
// Nothing is kept between scrapes, so a deleted node leaves no series behind.
type nodeCollector struct {
	control *control.Control
	log     *slog.Logger
}

func nodeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("outcrop_node_"+name, help, append([]string{nodeLabel}, labels...), nil)
}

var (
	descVCPUsCommittable  = nodeDesc("committable_vcpus", "vCPUs that the node can have committed.")
	descVCPUsCommitted    = nodeDesc("committed_vcpus", "vCPUs that instances hold on the node.")
	descMemoryCommittable = nodeDesc("committable_memory_bytes", "Memory that the node can have committed.")
	descMemoryCommitted   = nodeDesc("committed_memory_bytes", "Memory that instances hold on the node.")
	descDiskCommittable   = nodeDesc("committable_disk_bytes", "Disk that the node can have committed.")
	descDiskCommitted     = nodeDesc("committed_disk_bytes", "Disk that volumes hold on the node.")
	descUnits             = nodeDesc("countable_units", "Units of a countable label that the node has.", "label")
	descUnitsCommitted    = nodeDesc("committed_countable_units", "Units of a countable label that instances hold on the node.", "label")
	descReachable         = nodeDesc("reachable", "1 while the node's heartbeats arrive, 0 when it is unreachable.")
	descReady             = nodeDesc("ready", "1 while the node's state is ready.")
)

func (n *nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descVCPUsCommittable, descVCPUsCommitted, descMemoryCommittable, descMemoryCommitted,
		descDiskCommittable, descDiskCommitted, descUnits, descUnitsCommitted, descReachable, descReady} {
		ch <- d
	}
}

func (n *nodeCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	// Placement waits for a look at the fleet, so it may not wait for the scraper.
	var all []prometheus.Metric
	err := n.control.EachNode(ctx, func(v *schedule.Node) { all = appendNode(all, v) })
	if err != nil {
		n.log.Error("the fleet could not be read for metrics", "err", err)
		ch <- prometheus.NewInvalidMetric(descReady, err)
		return
	}
	for _, m := range all {
		ch <- m
	}
}

func appendNode(all []prometheus.Metric, n *schedule.Node) []prometheus.Metric {
	add := func(d *prometheus.Desc, v int64, labels ...string) {
		all = append(all, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{n.ID}, labels...)...))
	}
	add(descVCPUsCommittable, n.Committable.VCPUs)
	add(descVCPUsCommitted, n.Used.VCPUs)
	add(descMemoryCommittable, n.Committable.MemoryBytes)
	add(descMemoryCommitted, n.Used.MemoryBytes)
	add(descDiskCommittable, n.Committable.DiskBytes)
	add(descDiskCommitted, n.Used.DiskBytes)
	for key, units := range n.Countables {
		add(descUnits, units, key)
	}
	for key, units := range n.Held {
		add(descUnitsCommitted, units, key)
	}
	add(descReachable, oneIf(n.Liveness != compute.LivenessUnreachable))
	add(descReady, oneIf(n.State == compute.NodeReady))
	return all
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
