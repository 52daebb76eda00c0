package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

func trustDemonstration() Demonstration {
	return Demonstration{
		Name:  "trust",
		Short: "Show whose traffic strangers may rent, and who sees it",
		Long: `Emulate a cloudlet with a shop, its neighbour and a stranger as tenants to whom the operator gave
nothing. The shop's chain is refused until the shop's server proves its address by a password;
the neighbour's address is refused to the stranger. Who watches the operator's public log, from
another machine and without a credential, sees the interception begin, and end when the proof is
lost; the client's requests go on meanwhile (PacketCloud, Sections 3.3.1 and 3.6). A container of
the stranger's tries to get out of it, to take the machine's processes and to speak for others,
and the neighbours lose nothing. A service of the shop's answers in three cloudlets, at one name
that leads to the nearest, and to another when that dies (NetServ, Section 3).`,
		Seconds: 75,
		Needs:   append([]string{"ip"}, containers...),
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &trustRun{Run: r}
			err := d.show(ctx)
			return &d.figures, err
		},
	}
}

// TrustFigures are what the demonstration found.
type TrustFigures struct {
	Proved time.Duration `json:"proved"` // ns, from the password's appearance to the proof
	Begun  time.Duration `json:"begun"`  // from the chain in force to what the watcher saw
	Ended  time.Duration `json:"ended"`  // from the loss of the proof to the last rule gone
	Seen   time.Duration `json:"seen"`   // and to what the watcher saw
	Moved  time.Duration `json:"moved"`  // from a cloudlet's death to the last answer that names it
	// Requests of the client while all this happened, and those that failed.
	Requests int `json:"requests"`
	Lost     int `json:"lost"`
	Checks   `json:"checks"`
}

// Print implements Figures.
func (f *TrustFigures) Print(w io.Writer) {
	fmt.Fprintf(w, "\n  Proved %s after the password was there. The watcher saw the interception begin after %s.\n",
		round(f.Proved), round(f.Begun))
	fmt.Fprintf(w, "  The name of a service led elsewhere %s after a cloudlet died.\n", round(f.Moved))
	fmt.Fprintf(w, "  The last rule was gone %s after the proof was lost; the watcher saw it after %s.\n\n", round(f.Ended), round(f.Seen))
	f.print(w)
}

// trustRun is a run of the demonstration.
type trustRun struct {
	*Run
	figures TrustFigures
}

// Where things are in examples/lab/trust.yaml.
const (
	shopHost, watcherHost = "shop", "watcher"
	shopSite              = "http://10.9.0.2/"
	publicLog             = "https://10.255.0.10:7443"
)

func (d *trustRun) file(name string) string { return d.Example("trust/" + name) }

func (d *trustRun) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.setUp, d.refused, d.stranger, d.prove, d.intercept, d.contained, d.lose,
		d.service, d.check} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *trustRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/trust.yaml"))
	if err != nil {
		return err
	}
	config, err := d.serverConfig()
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, Server: TestbedNode{Host: "server", Address: "10.255.0.10"},
		ServerConfig: config, NodeConfig: config}
	for i, g := range trustGateways {
		spec.Nodes = append(spec.Nodes, TestbedNode{Name: g.node, Host: g.node, Address: fmt.Sprintf("10.255.0.%d", i+1), Cloudlet: g.cloudlet})
	}
	err = d.SetUp(ctx, spec)
	if err != nil {
		return err
	}
	if err := d.Testbed.Apply(ctx, d.file("operator.yaml")); err != nil {
		return err
	}
	t := d.Testbed
	for _, host := range []string{shopHost, "neighbour"} {
		address := map[string]string{shopHost: "10.9.0.2:80", "neighbour": "10.9.0.3:80"}[host]
		site := filepath.Join(d.Dir, host)
		if err := os.MkdirAll(filepath.Join(site, ".well-known"), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(site, "index.html"), []byte("the "+host+"\n"), 0o644); err != nil {
			return err
		}
		if err := t.Start("web-"+host, host, t.Bin(), "demo", "files", site, address); err != nil {
			return err
		}
	}
	d.Say("somebody at another machine: onpath log watch --prefix 10.9.0.2 --url %s", publicLog)
	return t.Start("watch", watcherHost, t.Bin(), "log", "watch", "--prefix", "10.9.0.2", "--url", publicLog,
		"--state", filepath.Join(d.Dir, "watched.json"))
}

// refused: the shop has no proof yet.
func (d *trustRun) refused(ctx context.Context) error {
	err := d.Testbed.Apply(ctx, d.file("chain.yaml"))
	d.Say("the shop applies a chain for what goes to 10.9.0.2")
	d.figures.add(err != nil && strings.Contains(err.Error(), "may select only"), "a chain of what nobody proved is refused",
		"%s", refusal(err))
	return ctx.Err()
}

// refusal is why something was refused, without where it stands.
func refusal(err error) string {
	if err == nil {
		return "it was taken"
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	if i := strings.Index(text, "tenant "); i > 0 {
		text = text[i:]
	}
	text, _, _ = strings.Cut(text, ";")
	return text
}

// stranger claims the neighbour's address, and asks for its packets.
func (d *trustRun) stranger(ctx context.Context) error {
	d.Say("a stranger claims the neighbour's 10.9.0.3")
	if err := d.Testbed.Apply(ctx, d.file("stranger.yaml")); err != nil {
		return err
	}
	var c onpath.PrefixClaim
	err := d.Testbed.WaitFor(ctx, "the neighbour's address was asked", time.Minute, func() (bool, error) {
		err := d.Testbed.Get(ctx, &c, "prefixclaim", "stranger/loot")
		return strings.Contains(c.Status.Evidence, "node gw"), err
	})
	if err != nil {
		return err
	}
	d.figures.add(c.Status.State != onpath.ClaimProved, "a claim of a neighbour's address is not proved",
		"%s: %s", c.Status.State, c.Status.Evidence)
	err = d.Testbed.Apply(ctx, d.file("thief.yaml"))
	d.figures.add(err != nil && strings.Contains(err.Error(), "may select only"), "and gives none of its packets, whatever the priority",
		"%s", refusal(err))
	return ctx.Err()
}

// prove has the shop's server show the password.
func (d *trustRun) prove(ctx context.Context) error {
	d.Say("the shop claims 10.9.0.2, and its server shows the password")
	if err := d.Testbed.Apply(ctx, d.file("claim.yaml")); err != nil {
		return err
	}
	var c onpath.PrefixClaim
	state := func(want func() bool) func() (bool, error) {
		return func() (bool, error) {
			err := d.Testbed.Get(ctx, &c, "prefixclaim", "shop/site")
			return want(), err
		}
	}
	err := d.Testbed.WaitFor(ctx, "the claim has a password", time.Minute, state(func() bool { return c.Status.Password != "" }))
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.password(), []byte(c.Status.Password+"\n"), 0o644); err != nil {
		return err
	}
	shown := time.Now()
	proved := state(func() bool { return c.Status.State == onpath.ClaimProved })
	if err := d.Testbed.WaitFor(ctx, "the claim is proved", time.Minute, proved); err != nil {
		return err
	}
	d.figures.Proved = time.Since(shown)
	d.figures.add(true, "the password that only the address's owner can show proves the claim", "%s", c.Status.Evidence)
	return nil
}

func (d *trustRun) password() string { return filepath.Join(d.Dir, shopHost, ".well-known", "onpath") }

// intercept has the chain taken now, and waits for what the watcher sees.
func (d *trustRun) intercept(ctx context.Context) error {
	d.Say("the shop applies its chain again")
	if err := d.Testbed.Apply(ctx, d.file("chain.yaml")); err != nil {
		return err
	}
	if err := d.Testbed.WaitActive(ctx, "shop/visitors", 20*time.Second, func(string) {}); err != nil {
		return err
	}
	active := time.Now()
	if err := d.ask(ctx, 5); err != nil {
		return err
	}
	if err := d.seen(ctx, "  10.9.0.2  intercepted by tenant shop"); err != nil {
		return err
	}
	d.figures.Begun = time.Since(active)
	d.figures.add(d.figures.Begun < 5*time.Second, "who watches the log sees the interception begin",
		"%s after it was in force", round(d.figures.Begun))
	return nil
}

// ask has the client fetch the shop's page.
func (d *trustRun) ask(ctx context.Context, times int) error {
	for range times {
		d.figures.Requests++
		out, err := d.Testbed.Exec(ctx, "client", d.Testbed.Bin(), "demo", "stats", shopSite)
		if err != nil || !strings.Contains(string(out), "the shop") {
			d.figures.Lost++
		}
	}
	return ctx.Err()
}

// seen waits for a line of the watcher's.
func (d *trustRun) seen(ctx context.Context, text string) error {
	return d.Testbed.WaitFor(ctx, "the watcher sees: "+text, time.Minute, func() (bool, error) {
		return strings.Contains(d.Testbed.Log("watch"), text), nil
	})
}

// lose takes the password away; the rules go with the proof, and nothing else does.
func (d *trustRun) lose(ctx context.Context) error {
	d.Say("the password goes: the proof is lost after at most 30 s")
	if err := os.Remove(d.password()); err != nil {
		return err
	}
	var c onpath.PrefixClaim
	lost := time.Time{}
	err := d.Testbed.WaitFor(ctx, "the chain steers nothing", time.Minute, func() (bool, error) {
		if err := d.ask(ctx, 1); err != nil {
			return false, err
		}
		if err := d.Testbed.Get(ctx, &c, "prefixclaim", "shop/site"); err != nil {
			return false, err
		}
		if !c.Status.Until.IsZero() {
			lost = c.Status.Until // as the last proof had it
		}
		var chain onpath.Chain
		err := d.Testbed.Get(ctx, &chain, "chain", "shop/visitors")
		return len(chain.Status.Cloudlets) == 0 && !chain.Status.Active, err
	})
	if err != nil {
		return err
	}
	d.figures.Ended = max(time.Since(lost), 0)
	if err := d.seen(ctx, "no longer intercepted by tenant shop"); err != nil {
		return err
	}
	d.figures.Seen = max(time.Since(lost), 0)
	d.figures.add(d.figures.Ended < 5*time.Second, "with the proof the last rule goes", "%s after its end", round(d.figures.Ended))
	d.figures.add(d.figures.Seen < 5*time.Second, "and the watcher sees the interception end",
		"%s after the proof's end", round(d.figures.Seen))
	if err := d.ask(ctx, 5); err != nil {
		return err
	}
	d.figures.add(d.figures.Lost == 0, "the shop's visitors lose nothing", "%d of %d requests failed", d.figures.Lost, d.figures.Requests)
	return nil
}

// check kills the server, and verifies the log against the watcher's checkpoint.
func (d *trustRun) check(ctx context.Context) error {
	d.Say("the server is killed and started again; the watcher's checkpoint is held against the log")
	if err := d.Testbed.Kill(serverProcess, syscall.SIGKILL); err != nil {
		return err
	}
	if err := d.Testbed.StartServer(ctx); err != nil {
		return err
	}
	var said []byte
	err := d.Testbed.WaitFor(ctx, "the log holds", time.Minute, func() (ok bool, err error) {
		said, err = d.Testbed.Exec(ctx, watcherHost, d.Testbed.Bin(), "log", "verify", "--url", publicLog,
			"--state", filepath.Join(d.Dir, "watched.json"))
		return err == nil, ctx.Err()
	})
	if err != nil {
		return err
	}
	d.figures.add(strings.Contains(string(said), "unchanged"), "the log forgot nothing over a kill of the server",
		"%s", strings.TrimSpace(string(said)))
	out, err := d.Testbed.Onpath(ctx, "audit", "--tenant", "shop", "-o", "json")
	if err != nil {
		return err
	}
	d.figures.add(strings.Contains(string(out), `"what": "begin"`) && strings.Contains(string(out), `"what": "change"`),
		"onpath audit says who changed what", "%d lines about the shop", strings.Count(string(out), `"what"`))
	return nil
}
