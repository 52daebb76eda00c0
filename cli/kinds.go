package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/engine"
	firewall "github.com/onpath/onpath/functions/ebpf-firewall"
	loadbalancer "github.com/onpath/onpath/functions/ebpf-loadbalancer"
	monitor "github.com/onpath/onpath/functions/ebpf-monitor"
	ratelimit "github.com/onpath/onpath/functions/ebpf-ratelimit"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/container"
	"github.com/onpath/onpath/runtime/inline"
	"github.com/onpath/onpath/runtime/wasm"
	"github.com/onpath/onpath/sdk"
)

// ebpfFunctions are those that come with onpath.
var ebpfFunctions = []sdk.Function{firewall.Function, loadbalancer.Function, monitor.Function, ratelimit.Function}

// functionKind is how this program runs functions of a kind.
type functionKind struct {
	name onpath.FunctionKind
	// open opens the kind's runtime. For a node that is taken off, cl is nil.
	open func(ctx context.Context, conf *config.Node, cl *client.Client, log *slog.Logger) (onpath.Runtime, error)
	// dir is the folder where the runtime keeps what it has on a node.
	dir func(conf *config.Node) string
	// elsewhere reports whether it may have something there without a folder.
	elsewhere func(conf *config.Node) bool
	// leaves is what may be left of instances, in words.
	leaves string
	// check looks into functions before a server takes them; nil: nobody does.
	check onpath.FunctionChecker
}

// functionKinds are all kinds that this program runs.
var functionKinds = []functionKind{
	{onpath.ContainerFunction, openContainers, containerDir, ownContainerd, "the instances of the container runtime", nil},
	{onpath.EBPFFunction, openInline, inlineDir, nowhere, "the tables of ebpf functions", inline.Checker{Functions: ebpfFunctions}},
	{onpath.WasmFunction, openEngines, engineDir, nowhere, "the engines of wasm functions", wasm.Checker{}},
	{onpath.RelayFunction, openRelays, relayDir, nowhere, "the relays", nil},
}

// leftovers are what the runtimes have of a node that is taken off.
func leftovers(ctx context.Context, conf *config.Node, log *slog.Logger) (parts []node.OffPart) {
	for _, k := range functionKinds {
		_, err := os.Stat(k.dir(conf))
		if err != nil && !k.elsewhere(conf) {
			continue
		}
		rt, openErr := k.open(ctx, conf, nil, log)
		if openErr != nil {
			log.Warn(k.leaves+" cannot be looked for here", "error", openErr)
			continue
		}
		parts = append(parts, node.OffPart{What: k.leaves, Found: err == nil, Remove: rt.Remove}) // closes rt
	}
	return parts
}

// openRuntimes says how to open the runtimes; the agent does it, again and again where
// it fails. A machine without one is still a gateway; the node's conditions say what it
// lacks.
func openRuntimes(conf *config.Node, cl *client.Client,
	log *slog.Logger) map[onpath.FunctionKind]func(context.Context) (onpath.Runtime, error) {
	open := map[onpath.FunctionKind]func(context.Context) (onpath.Runtime, error){}
	for _, k := range functionKinds {
		open[k.name] = func(ctx context.Context) (onpath.Runtime, error) { return k.open(ctx, conf, cl, log) }
	}
	return open
}

func functionCheckers() map[onpath.FunctionKind]onpath.FunctionChecker {
	checks := map[onpath.FunctionKind]onpath.FunctionChecker{}
	for _, k := range functionKinds {
		if k.check != nil {
			checks[k.name] = k.check
		}
	}
	return checks
}

func containerDir(conf *config.Node) string { return filepath.Join(conf.StateDir, "container") }

// ownContainerd: a containerd of the machine's keeps instances for itself. A private one
// without a folder has nothing; it is not started to be asked.
func ownContainerd(conf *config.Node) bool { return conf.Containerd != "" }

func nowhere(*config.Node) bool { return false }

func openContainers(ctx context.Context, conf *config.Node, cl *client.Client, log *slog.Logger) (onpath.Runtime, error) {
	o := container.Options{Address: conf.Containerd, StateDir: containerDir(conf), Name: conf.Name, Log: log, HostImage: conf.HostImage}
	if cl != nil {
		o.Registry = func(host string) (container.Registry, bool) {
			return container.Registry{URL: cl.URL(), Client: cl.HTTP()}, host == onpath.ImageHost
		}
	}
	d, err := container.New(ctx, o)
	if err != nil {
		return nil, err // and no interface that holds a nil pointer
	}
	return d, nil
}

func inlineDir(conf *config.Node) string { return filepath.Join(conf.StateDir, "ebpf") }

func openInline(_ context.Context, conf *config.Node, _ *client.Client, log *slog.Logger) (onpath.Runtime, error) {
	d, err := inline.New(inline.Options{Dir: inlineDir(conf), Functions: ebpfFunctions, Log: log})
	if err != nil {
		return nil, err
	}
	return d, nil
}

func engineDir(conf *config.Node) string { return filepath.Join(conf.StateDir, "wasm") }

func openEngines(_ context.Context, conf *config.Node, _ *client.Client, log *slog.Logger) (onpath.Runtime, error) {
	d, err := wasm.New(wasm.Options{Dir: engineDir(conf), Log: log, Blocks: offeredBlocks(conf),
		FetchTargets: plain(conf.FetchTargets), Disk: conf.ModuleDisk})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// offeredBlocks are what modules may use on the machine.
func offeredBlocks(conf *config.Node) []string {
	if conf.Blocks == nil {
		return engine.Blocks
	}
	return conf.Blocks
}

// checkBlocks refuses building blocks that there are not.
func checkBlocks(list []string) error {
	for _, b := range list {
		if !slices.Contains(engine.Blocks, b) {
			return onpath.Errorf(onpath.CodeInvalid, "node.blocks: there is no block %q; there are %s", b,
				strings.Join(engine.Blocks, ", "))
		}
	}
	return nil
}
