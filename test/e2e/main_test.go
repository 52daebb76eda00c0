// Package e2e runs the whole program, server, agents, containers and data path,
// in an emulated network and sends real traffic through it.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

// testbed is shared by all tests of the package, which run one after the other
// and delete the chains they make.
var testbed *demo.Testbed

// lacking says why the tests cannot run here; "" if they can.
var lacking string

// sociable are the tests that bear others beside them: what they ask for comes about on
// a busy machine as well, and they measure nothing. They are in two parts that take about
// as long as each other, and run at once, each with a testbed of its own.
var sociable = map[string]string{
	"first": tests("TestAgentAway", "TestBeginMeanwhile", "TestBrokenFunctions", "TestChangesUnderTraffic", "TestCutShort", "TestFunctionBudget",
		"TestFunctions", "TestLabDownTakesNodesOff", "TestModuleForges", "TestModuleServes", "TestNewChainIsQuick", "TestNodeOffOfAnother",
		"TestOneMoreInstanceIsQuick", "TestRestingFlows", "TestSIPKeepAlive", "TestServiceContainers", "TestTerminals", "TestTraceFunctions",
		"TestUpgrade", "TestVerifyAndWatch"), // of quick ones, the bounds are those of a whole run
	"second": tests("TestAsleepModule", "TestCatalogueQuick", "TestCutWaiting", "TestFaults", "TestLoadbalancer", "TestLoadbalancerVersions",
		"TestModuleTraffic", "TestNetmonitor", "TestNoFalseAlarm", "TestNotifiesUnderLoad", "TestRelaysAlone", "TestSecondAgent",
		"TestSecret", "TestThreeContainers", "TestTogether", "TestTraceTrial", "TestUndone", "TestUntouched", "TestWaitInVain", "TestWeightsFrom"),
}

// tests is a regular expression for the names.
func tests(names ...string) string { return "^(" + strings.Join(names, "|") + ")$" }

// part leaves the tests of which ONPATH_E2E speaks: some of the sociable ones, or the others.
// The whole run has them in three parts, of which two share the machine.
func part(of string) error {
	skip := flag.Lookup("test.skip").Value.String()
	switch {
	case of == "":
		return nil
	case flag.Lookup("test.run").Value.String() != "":
		return errors.New("ONPATH_E2E chooses among the tests, and so does -run")
	case sociable[of] != "":
		return flag.Set("test.run", sociable[of])
	case of != "others":
		return fmt.Errorf("ONPATH_E2E is %q, must be first, second or others", of)
	case skip != "":
		skip = "|" + skip
	}
	return flag.Set("test.skip", sociable["first"]+"|"+sociable["second"]+skip)
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := part(os.Getenv("ONPATH_E2E")); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	code, err := withTestbed(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func withTestbed(m *testing.M) (code int, err error) {
	if lacking = lacks(); lacking != "" {
		return m.Run(), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	bin, remove, err := testprogram.Find(ctx)
	if err != nil {
		return 1, err
	}
	defer remove()
	topology, err := lab.ParseFile("testdata/lab.yaml")
	if err != nil {
		return 1, err
	}
	topology.Name = fmt.Sprintf("e2e-%d", os.Getpid())
	dir, err := os.MkdirTemp("", "onpath-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "server", "onpath.yaml")
	if err := os.Mkdir(filepath.Dir(config), 0o755); err != nil {
		return 1, err
	}
	pools := "server: {publicPools: [203.0.113.0/28, \"2001:db8:5::/64\"]}\n"
	if err := os.WriteFile(config, []byte(pools), 0o644); err != nil {
		return 1, err
	}
	spec := demo.TestbedSpec{Topology: topology, Bin: bin, Dir: dir, HostImage: true,
		Server: demo.TestbedNode{Host: "server", Address: "10.255.0.10"}, ServerConfig: config}
	for i, n := range []string{"gw1", "n1", "n2", "n3"} {
		address := fmt.Sprintf("10.255.0.%d", 10+i)
		if n == "gw1" {
			address = "10.255.0.1"
		}
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: n, Host: n, Address: address, Cloudlet: "pop"})
	}
	if testbed, err = demo.SetUp(ctx, spec); err != nil {
		return 1, err
	}
	defer func() {
		err = errors.Join(err, testbed.TearDown(context.Background()))
	}()
	if err := testbed.Apply(ctx, "testdata/nodes.yaml"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// lacks says what this machine has not.
func lacks() string {
	if os.Getuid() != 0 {
		return "needs root for network namespaces, eBPF and containers"
	}
	for _, p := range []string{"containerd", "runc", "nft", "ip", "ping", "iperf3"} {
		if _, err := exec.LookPath(p); err != nil {
			return "needs the program " + p
		}
	}
	return ""
}

// need skips where the machine cannot, and gives the test a deadline. On
// failure it shows what the server and the agents said.
func need(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	// What passed as one part has not passed as another: go test keeps results by what
	// tests have read of the environment, not TestMain.
	_ = os.Getenv("ONPATH_E2E")
	if lacking != "" {
		t.Skip(lacking)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*limit) // a busy machine takes longer
	t.Cleanup(cancel)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, name := range []string{"server", "gw1", "n1", "n2", "n3"} {
			t.Logf("--- end of %s.log\n%s", name, tail(testbed.Log(name), 40))
		}
	})
	return ctx
}

func tail(s string, lines int) string {
	l := strings.Split(s, "\n")
	return strings.Join(l[max(0, len(l)-lines):], "\n")
}

// api is a client of the testbed's server.
func api(t *testing.T) *client.Client {
	t.Helper()
	c := client.Unix(strings.TrimPrefix(testbed.Socket(), "unix://"))
	t.Cleanup(c.Close)
	return c
}

// apply writes YAML to a file, applies it, and deletes it after the test.
func apply(ctx context.Context, t *testing.T, yaml string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	applyFile(ctx, t, file)
}

func applyFile(ctx context.Context, t *testing.T, file string) {
	t.Helper()
	before, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, file, len(before)) })
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
}

// remove deletes what a file declares and waits until no more instances are
// left than there were before it was applied.
func remove(t *testing.T, file string, before int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	if _, err := testbed.Onpath(ctx, "delete", "-f", file); err != nil {
		t.Errorf("clean up: %v", err)
	}
	err := testbed.WaitFor(ctx, "its instances are gone", 80*time.Second, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		return len(list) <= before, err
	})
	if err != nil {
		t.Errorf("clean up: %v", err)
	}
}

// active waits until a chain steers.
func active(ctx context.Context, t *testing.T, chain string) {
	t.Helper()
	if err := testbed.WaitActive(ctx, chain, time.Minute, nil); err != nil {
		t.Fatal(err)
	}
}

// in runs fn inside a lab host; fn opens sockets and starts no goroutine that
// needs the host.
func in(t *testing.T, host string, fn func() error) {
	t.Helper()
	if err := netnsrun.Do(testbed.Lab.NetNS(host), fn); err != nil {
		t.Fatal(err)
	}
}

// run runs a command in a lab host and returns its output.
func run(ctx context.Context, t *testing.T, host string, args ...string) string {
	t.Helper()
	out, err := testbed.Exec(ctx, host, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
