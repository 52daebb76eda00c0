package demo

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

func cdnDemonstration() Demonstration {
	return Demonstration{
		Name:  "cdn",
		Short: "Show a crowd that is served a millisecond away, by one message",
		Long: `Emulate a web site and four sites of users, each behind an onpath node. A crowd of 200 clients comes.
Beside the web site, onpath publisher cdn notices, has a module installed at each site by a signed
message, and sends the clients there (NetServ, Section 4.1): the module fetches each file once, serves
and stores it at the same time, and so a live stream (Section 7). When the crowd is gone, so is the
module. Every byte that clients get is compared with the file's.`,
		Seconds: 75,
		Needs:   []string{"ip"},
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &cdnRun{Run: r}
			err := d.show(ctx)
			return &d.figures, err
		},
	}
}

// CDNFigures are what the demonstration found.
type CDNFigures struct {
	Requests int `json:"requests"`
	Ranges   int `json:"ranges"` // of them
	// Edge and Origin are bytes that clients got later than 5 s after the threshold was crossed.
	Edge   int64         `json:"edge"`
	Origin int64         `json:"origin"`
	First  time.Duration `json:"first"` // ns, from the threshold to the first byte from a module
	// Fetched is how many files crossed the core, of all sites, Live how many lines of the stream came.
	Fetched int `json:"fetched"`
	Live    int `json:"live"`
	Checks  `json:"checks"`
}

// Share is what modules served, in percent.
func (f *CDNFigures) Share() float64 {
	if f.Edge+f.Origin == 0 {
		return 0
	}
	return 100 * float64(f.Edge) / float64(f.Edge+f.Origin)
}

// Print implements Figures.
func (f *CDNFigures) Print(w io.Writer) {
	fmt.Fprintf(w, "\n  %d requests, %d of them for ranges. The first byte from the edge came %s after the threshold;\n",
		f.Requests, f.Ranges, round(f.First))
	fmt.Fprintf(w, "  from 5 s after it on, the edge gave %.1f %% of %d MB. %d files crossed the core.\n", f.Share(),
		(f.Edge+f.Origin)/1_000_000, f.Fetched)
	fmt.Fprintf(w, "  NetServ shows the same steps (Figure 6), and says no figure.\n\n")
	f.print(w)
}

// cdnRun is a run of the demonstration.
type cdnRun struct {
	*Run
	figures CDNFigures
	site    *webSite
	crowd   *crowd
}

// Where things are in examples/lab/cdn.yaml, and how long the parts take.
const (
	cdnBase      = "http://10.9.0.2"
	cdnSites     = 4
	cdnThreshold = 20
	crowdFor     = 16 * time.Second
	watchAfter   = 7 * time.Second
	settled      = 5 * time.Second // after the threshold
	coldAfter    = 6 * time.Second
)

func (d *cdnRun) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.setUp, d.publish, d.come, d.once, d.cold} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *cdnRun) file(name string) string { return d.Example("cdn/" + name) }

func (d *cdnRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/cdn.yaml"))
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, Server: TestbedNode{Host: "operator", Address: "10.255.0.10"},
		ServerConfig: d.file("machine.yaml"), NodeConfig: d.file("machine.yaml")}
	for i := 1; i <= cdnSites; i++ {
		n := fmt.Sprintf("gw%d", i)
		spec.Nodes = append(spec.Nodes, TestbedNode{Name: n, Host: n, Address: fmt.Sprintf("10.255.0.%d", i), Cloudlet: fmt.Sprintf("site%d", i)})
	}
	if err := d.SetUp(ctx, spec); err != nil {
		return err
	}
	return d.lend(ctx, "cdn/", "a part of four nodes, and an address at each,")
}

// publish starts the web site, and the daemon in front of it.
func (d *cdnRun) publish(ctx context.Context) error {
	t := d.Testbed
	var err error
	if d.site, err = newWebSite(filepath.Join(d.Dir, "site")); err != nil {
		return err
	}
	if err := d.site.serve(ctx, t.Lab.NetNS(publisherHost), "127.0.0.1:8000"); err != nil {
		return err
	}
	d.Say("onpath publisher cdn in front of a web site of %d files, 1 KB to 20 MB, and a live stream", siteFiles)
	err = t.Start("publisher", publisherHost, t.Bin(), "publisher", "cdn",
		"--origin", "http://127.0.0.1:8000", "--edge", publisherAddress+":8080", "--nodes", d.file("nodes"), "--key", d.file("publisher.key"),
		"--threshold", fmt.Sprint(cdnThreshold), "--window", "5s", "--cold", coldAfter.String(), "--ttl", "30s", "--life", "2s")
	if err != nil {
		return err
	}
	// The nodes know what they may lend once they have their plans.
	return t.WaitFor(ctx, "the nodes lend", time.Minute, func() (bool, error) {
		for i := 1; i <= cdnSites; i++ {
			out, err := t.Exec(ctx, publisherHost, t.Bin(), "signal", "probe", "--toward", fmt.Sprintf("10.%d.0.11", i),
				"--nodes", d.file("nodes"), "--key", d.file("publisher.key"))
			if err != nil || !strings.Contains(string(out), "absent") {
				return false, ctx.Err()
			}
		}
		return true, nil
	})
}

// come has the crowd come, and watchers of the stream with it.
func (d *cdnRun) come(ctx context.Context) error {
	c := &crowd{base: cdnBase, threshold: cdnThreshold, netns: func(i int) string { return d.Testbed.Lab.NetNS(fmt.Sprintf("users%d", i+1)) }}
	d.crowd = c
	d.Say("%d clients at %d addresses come; a third of them read slowly", crowdClients, 5*cdnSites)
	c.began = time.Now()
	crowded, cancel := context.WithTimeout(ctx, crowdFor)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for k := range 3 * cdnSites {
		wg.Go(func() {
			pause(crowded, watchAfter+time.Duration(k/cdnSites)*200*time.Millisecond)
			n, err := c.watch(crowded, k%cdnSites)
			mu.Lock()
			defer mu.Unlock()
			d.figures.Live += n
			failed = firstOf(failed, err)
		})
	}
	c.run(crowded, 1)
	wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f := &d.figures
	crossed := time.Duration(c.crossed.Load())
	f.Requests, f.Ranges = int(c.done.Load()), int(c.ranges.Load())
	f.Edge, f.Origin = c.bytes(crossed + settled)
	for i := range c.edge {
		if c.edge[i].Load() > 0 {
			f.First = max(0, time.Duration(i)*100*time.Millisecond-crossed)
			break
		}
	}
	why, _ := c.failure.Load().(string)
	f.add(c.wrong.Load() == 0 && f.Requests > crowdClients, "all bytes are right, of whole files and of ranges", "%d requests, %d failed %s",
		f.Requests, c.wrong.Load(), why)
	f.add(f.Share() >= 90, "5 s after the threshold at least 90 % of the bytes come from the edge", "%.1f %% of %d MB", f.Share(),
		(f.Edge+f.Origin)/1_000_000)
	cut := ""
	if failed != nil {
		cut = fmt.Sprintf(", %v", failed)
	}
	f.add(failed == nil && f.Live > 0, "a live stream comes from the edge, whole", "%d lines to %d watchers%s", f.Live, 3*cdnSites, cut)
	return nil
}

// once counts what crossed the core.
func (d *cdnRun) once(context.Context) error {
	d.site.mu.Lock()
	defer d.site.mu.Unlock()
	again, streams := "", 0
	for what, n := range d.site.fetched {
		if strings.HasSuffix(what, livePath) {
			streams += n
			continue
		}
		d.figures.Fetched++
		if n > 1 {
			again += fmt.Sprintf("; %s %d times", what, n)
		}
	}
	d.figures.add(again == "" && d.figures.Fetched > 0, "each file crosses the core once for each node", "%d files for %d nodes%s",
		d.figures.Fetched, cdnSites, again)
	d.figures.add(streams == cdnSites, "so does the stream", "%d for %d watchers at %d nodes", streams, 3*cdnSites, cdnSites)
	return nil
}

// cold waits until nothing is left.
func (d *cdnRun) cold(ctx context.Context) error {
	d.Say("the crowd is gone")
	began := time.Now()
	var left string
	err := d.Testbed.WaitFor(ctx, "nothing is left", coldAfter+25*time.Second, func() (bool, error) {
		time.Sleep(300 * time.Millisecond)
		left = ""
		for i := 1; i <= cdnSites; i++ {
			host := fmt.Sprintf("gw%d", i)
			out, err := d.Testbed.Exec(ctx, host, "ip", "-br", "link")
			if err != nil {
				return false, err
			}
			if strings.Contains(string(out), "op0") {
				left += " " + host
			}
		}
		var list []onpath.Lease
		if err := d.Testbed.Get(ctx, &list, "leases"); err != nil {
			return false, err
		}
		return left == "" && len(list) == 0, nil
	})
	d.figures.add(err == nil, "when it is cold, nothing is left", "after %s%s", round(time.Since(began)), left)
	return ctx.Err()
}
