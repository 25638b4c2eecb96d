package testenv

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// clusterSlots is the number of slots of every Cluster.
const clusterSlots = 16384

// ClusterServers are a Redis Cluster of three masters, each with a third of the slots, without replicas.
type ClusterServers struct {
	t     testing.TB
	nodes []*RedisServer
	moved map[int]int // slots, and the nodes that have them since
}

// RedisCluster starts a Redis Cluster that ends with the test. What extraArgs say holds for every node.
func RedisCluster(t testing.TB, extraArgs ...string) *ClusterServers {
	t.Helper()
	c := &ClusterServers{t: t, moved: map[int]int{}}
	var buses []int
	for range 3 {
		bus := freePort(t) // by default it lies 10,000 above the other one, where outgoing connections are
		buses = append(buses, bus)
		args := append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "2000",
			"--cluster-require-full-coverage", "no",
		}, extraArgs...)
		c.nodes = append(c.nodes, Redis(t, args...))
	}
	ctx := t.Context()
	for i, node := range c.nodes {
		from, to := i*clusterSlots/len(c.nodes), (i+1)*clusterSlots/len(c.nodes)-1
		c.must(node.client.Do(ctx, "cluster", "set-config-epoch", i+1))
		c.must(node.client.ClusterAddSlotsRange(ctx, from, to))
		if i > 0 {
			c.must(c.nodes[0].client.Do(ctx, "cluster", "meet", "127.0.0.1", node.port, buses[i]))
		}
	}
	c.waitOK()
	return c
}

func (c *ClusterServers) must(cmd redis.Cmder) {
	c.t.Helper()
	if err := cmd.Err(); err != nil {
		c.t.Fatalf("%s: %v", cmd.Name(), err)
	}
}

// waitOK waits until every node knows all nodes and all slots.
func (c *ClusterServers) waitOK() {
	c.t.Helper()
	whole := eventually(startTimeout, func() bool {
		for _, node := range c.nodes {
			info := node.client.ClusterInfo(c.t.Context()).Val()
			for _, want := range []string{
				"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", len(c.nodes)),
				fmt.Sprintf("cluster_slots_ok:%d", clusterSlots), fmt.Sprintf("cluster_size:%d", len(c.nodes)),
			} {
				if !strings.Contains(info, want+"\r\n") {
					return false
				}
			}
		}
		return true
	})
	if !whole {
		c.t.Fatal("the Redis Cluster doesn't come up")
	}
}

// URL names the first two of the nodes; clients learn of the third.
func (c *ClusterServers) URL() string {
	return "redis://" + loopback(c.nodes[0].port) + "?" + url.Values{"addr": {loopback(c.nodes[1].port)}}.Encode()
}

// Nodes are the masters. A node that is killed and started again comes back with its slots, empty.
func (c *ClusterServers) Nodes() []*RedisServer {
	return c.nodes
}

// Replace kills a node for good and lets another take its slots over, empty. Nobody is left who could tell clients so.
func (c *ClusterServers) Replace(dead, by int) {
	c.t.Helper()
	ctx := c.t.Context()
	id := c.nodes[dead].client.Do(ctx, "cluster", "myid").Val()
	c.nodes[dead].Kill()
	for i, node := range c.nodes {
		if i != dead {
			c.must(node.client.Do(ctx, "cluster", "forget", id))
		}
	}
	heir := c.nodes[by].client
	var owned []redis.SlotRange
	for _, shard := range heir.ClusterShards(ctx).Val() {
		owned = append(owned, shard.Slots...)
	}
	slices.SortFunc(owned, func(a, b redis.SlotRange) int { return int(a.Start - b.Start) })
	free := int64(0) // the first slot that may have no owner now
	for _, r := range append(owned, redis.SlotRange{Start: clusterSlots}) {
		if free < r.Start {
			c.must(heir.ClusterAddSlotsRange(ctx, int(free), int(r.Start-1)))
		}
		free = r.End + 1
	}
}

// Owner is the node that has a slot.
func (c *ClusterServers) Owner(slot int) int {
	if node, moved := c.moved[slot]; moved {
		return node
	}
	for i := range c.nodes {
		if slot < (i+1)*clusterSlots/len(c.nodes) {
			return i
		}
	}
	return -1
}

// Move moves a slot with all its keys to the node to, while clients work on: between start and end of it they are told
// ASK or TRYAGAIN, afterwards MOVED. during runs halfway, when half of the keys have moved. One slot can move at a time.
func (c *ClusterServers) Move(slot, to int, during func()) {
	c.t.Helper()
	ctx := c.t.Context()
	ids := make([]string, len(c.nodes))
	from := c.Owner(slot)
	for i, node := range c.nodes {
		ids[i] = node.client.Do(ctx, "cluster", "myid").Val().(string)
	}
	source, target := c.nodes[from].client, c.nodes[to].client
	c.must(target.Do(ctx, "cluster", "setslot", slot, "importing", ids[from]))
	c.must(source.Do(ctx, "cluster", "setslot", slot, "migrating", ids[to]))
	keys := source.ClusterGetKeysInSlot(ctx, slot, 100000).Val()
	for i, key := range keys {
		if i == len(keys)/2 {
			during()
		}
		c.must(source.Migrate(ctx, "127.0.0.1", strconv.Itoa(c.nodes[to].port), key, 0, startTimeout))
	}
	for _, key := range source.ClusterGetKeysInSlot(ctx, slot, 100000).Val() { // made meanwhile
		c.must(source.Migrate(ctx, "127.0.0.1", strconv.Itoa(c.nodes[to].port), key, 0, startTimeout))
	}
	for _, node := range []*redis.Client{target, source} {
		c.must(node.Do(ctx, "cluster", "setslot", slot, "node", ids[to]))
	}
	c.moved[slot] = to
}
