package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/lab/relay"
)

// The cases with a client that is far away: what a relay is for.
const (
	relayFar      = "1 connection, 2 Gbit/s, client's leg 20 ms"
	relayFarFirst = "connections one after the other, client's leg 20 ms"

	relayLeg = 20 * time.Millisecond // there and back
)

// farRounds measures with the client's leg. What delays frames takes its share of the CPU, of
// all contestants alike: CPU is measured without it.
func (r *Run) farRounds(ctx context.Context, makers []siteMaker) (err error) {
	list, err := r.relaySites(ctx, func(name string) (*site, error) { return r.siteOf(name+"-far", (*site).wireFar) }, makers)
	defer func() { err = errors.Join(err, closeSites(list)) }()
	if err != nil {
		return err
	}
	rounds := streamsEach * r.Rounds() // a loss at its beginning halves a stream's rate, whoever relays
	for round := range rounds {
		r.say("client's leg, round %d of %d", round+1, rounds)
		err := backAndForth(ctx, round, list, func(d deployment) error {
			connected, took, err := d.firstBytes(pick(r, 50, 5))
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			r.sample(relayFarFirst, d.name, metricConnect, unitMicroseconds, round, micros(connected))
			r.sample(relayFarFirst, d.name, metricFirstByte, unitMicroseconds, round, micros(took))
			if err := d.limit(netlink.QdiscAdd); err != nil {
				return err
			}
			p, err := d.pump(ctx, pick(r, 2*time.Second, 200*time.Millisecond))
			if err := errors.Join(err, d.limit(netlink.QdiscDel)); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			r.sample(relayFar, d.name, MetricThroughput, "bit/s", round, p.rate())
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// withoutCopy leaves the copying program out: its threads would wait for the clock alone.
func withoutCopy(makers []siteMaker) []siteMaker {
	return slices.DeleteFunc(slices.Clone(makers), func(m siteMaker) bool { return m.name == relayCopy })
}

// wireFar has the client's leg take relayLeg.
func (t *site) wireFar() error {
	return t.wireBetween(func(gateway, client testnet.End) error {
		ns, err := t.Namespace("leg")
		if err != nil {
			return err
		}
		near, far := testnet.End{NS: ns, Dev: "near"}, testnet.End{NS: ns, Dev: "far"}
		return errors.Join(testnet.Pair(gateway, near), testnet.Pair(client, far), t.delay(near, far))
	})
}

// delay carries frames between two devices, each way half of relayLeg later.
func (t *site) delay(a, b testnet.End) error {
	counters, err := relay.MapCounters(filepath.Join(t.Dir(), "leg.counters"), 1)
	if err != nil {
		return err
	}
	way := relay.Shape{Delay: relayLeg / 2}
	var run func(context.Context) error
	var release func()
	if err := netnsrun.Do(a.NS, func() error {
		lines, err := relay.Open([]relay.Link{{Name: "leg", A: a.Dev, B: b.Dev, There: way, Back: way}}, counters)
		if err == nil {
			run, release = lines.Run, lines.Close
		}
		return err
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	processors, ended := runtime.GOMAXPROCS(0), make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.After(func() error {
		cancel()
		err := <-ended
		release()
		runtime.GOMAXPROCS(processors) // run has more of them
		return err
	})
	return nil
}
