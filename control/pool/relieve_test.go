package pool

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// told notes the events of a pool, by what they are about and why.
func (f *fixture) told() map[string]int {
	out := map[string]int{}
	f.o.Tell = func(about onpath.Key, reason, _ string, _ bool) { out[about.Name+" "+reason]++ }
	return out
}

// set changes a node.
func (f *fixture) set(name string, change func(*Node)) {
	n := f.nodes[name]
	change(&n)
	f.nodes[name] = n
	f.observe()
	f.Tick(f.t.Context())
}

// at is the node of a reservation's only instance.
func (f *fixture) at(name string) string { return f.get(name).Status.Places[0].Node }

func (f *fixture) inFra(name string, from, until time.Duration, c float64) {
	r := request(name, from, until, cores(c))
	r.Spec.Cloudlet = "fra"
	f.must(r)
}

// TestDrain: what is promised on a node that is to be drained moves, what runs and what begins
// later, as far as others have room. What has none moves once there is some.
func TestDrain(t *testing.T) {
	f := setUp(t)
	f.inFra("runs", 0, 10*time.Hour, 1)
	f.inFra("later", 5*time.Hour, 10*time.Hour, 2)
	f.inFra("large", 0, time.Hour, 2)
	f.inFra("blocks", 0, 30*time.Minute, 1.1)
	f.pass(time.Minute)
	if f.at("runs") != "fra-1" || f.at("later") != "fra-1" || f.at("large") != "fra-1" || f.at("blocks") != "fra-2" {
		t.Fatal("they are elsewhere than this test wants")
	}
	f.set("fra-1", func(n *Node) { n.Drain, n.Usable = true, false })
	if f.at("later") != "fra-2" || f.at("large") != "fra-2" || f.get("large").Status.Places[0].Leaving != "fra-1" {
		t.Errorf("large is at %+v, later at %s", f.get("large").Status.Places, f.at("later"))
	}
	if f.at("runs") != "fra-1" || len(f.PromisedTo("fra-1")) != 1 {
		t.Errorf("runs is at %s, where there is no room; on fra-1 are %v", f.at("runs"), f.PromisedTo("fra-1"))
	}
	f.pass(30 * time.Minute)
	f.pass(relieveAgain)
	if f.at("runs") != "fra-2" || len(f.PromisedTo("fra-1")) != 0 {
		t.Errorf("runs is at %s; on fra-1 are %v", f.at("runs"), f.PromisedTo("fra-1"))
	}
	f.checkLedger()
}

// TestLessThanPromised: of a node that has less than it has promised, what does not run yet
// moves. Of what runs, the operator is told once.
func TestLessThanPromised(t *testing.T) {
	for name, less := range map[string]func(*fixture){
		"capacity":                 func(f *fixture) { f.set("fra-1", func(n *Node) { n.Capacity.CPU = 2000 }) },
		"share":                    func(f *fixture) { c := f.cls["fra"]; c.Share = 60; f.cls["fra"] = c },
		"outside of reservations":  func(f *fixture) { f.set("fra-1", func(n *Node) { n.Taken = cores(2) }) },
		"while the server was off": func(f *fixture) { n := f.nodes["fra-1"]; n.Capacity.CPU = 2000; f.nodes["fra-1"] = n; f.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			f.inFra("runs", 0, 10*time.Hour, 2)
			f.inFra("later", 5*time.Hour, 10*time.Hour, 1)
			f.inFra("elsewhen", 20*time.Hour, 21*time.Hour, 1)
			f.pass(10 * time.Minute)
			if f.at("runs") != "fra-1" || f.at("later") != "fra-1" {
				t.Fatal("they are elsewhere than this test wants")
			}
			events := f.told()
			less(f)
			f.observe()
			told := f.told()
			f.Tick(t.Context())
			f.pass(time.Minute)
			if f.at("runs") != "fra-1" || f.at("elsewhen") != "fra-1" {
				t.Errorf("runs is at %s, elsewhen at %s", f.at("runs"), f.at("elsewhen"))
			}
			if n := events["fra-1 Oversold"] + told["fra-1 Oversold"]; f.at("later") == "fra-1" || n != 1 {
				t.Errorf("later is at %s, the operator is told %d times", f.at("later"), n)
			}
		})
	}
}

// TestPlannerTakesTheSameRoom: while the planner plans by what was promised before, the pool
// promises the same room. The reservation goes elsewhere at once.
func TestPlannerTakesTheSameRoom(t *testing.T) {
	f := setUp(t)
	f.inFra("new", 0, time.Hour, 2)
	f.set("fra-1", func(n *Node) { n.Taken = cores(2) })
	if f.at("new") != "fra-2" {
		t.Errorf("it is at %s, which has %v", f.at("new"), f.nodes["fra-1"])
	}
	events := f.told()
	f.pass(time.Minute)
	if f.at("new") != "fra-2" || events["fra-1 Oversold"] > 0 {
		t.Errorf("it is at %s; %v", f.at("new"), events)
	}
}
