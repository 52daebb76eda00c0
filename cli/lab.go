package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/roster"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/cli/terminal"
	"github.com/onpath/onpath/lab"
)

func newLab(g *global) *cobra.Command {
	l := &labFlags{global: g}
	c := group("lab", "Emulate networks: hosts, links with rate, delay and loss", groupRun,
		l.up(), l.down(), l.status(), l.exec())
	c.Example = examples("sudo onpath lab up two-hosts.yaml", "sudo onpath lab exec client ping -c3 10.9.0.2",
		"sudo onpath lab down two-hosts")
	c.PersistentFlags().StringVar(&l.stateDir, "lab-dir", "", "where labs are kept (default "+lab.DefaultStateDir+")")
	return c
}

const noLab = "no lab is up"

type labFlags struct {
	*global
	stateDir, name, emulation string
	ipNetNS                   bool
}

func (l *labFlags) up() *cobra.Command {
	c := &cobra.Command{
		Use: "up FILE", Short: "Make the network that a file describes",
		Example: examples("sudo onpath lab up two-hosts.yaml",
			"sudo onpath lab up two-hosts.yaml --ip-netns && sudo ip netns exec two-hosts-client bash"),
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			outliveReader()
			t, err := unlessEnded(c.Context(), func() (*lab.Topology, error) { return lab.ParseFile(args[0]) })
			if err != nil {
				return err
			}
			progress := newProgress(c.ErrOrStderr())
			defer progress.done()
			up, err := lab.Up(c.Context(), t, lab.Options{Name: l.name, StateDir: l.stateDir, Emulation: l.emulation, IPNetNS: l.ipNetNS,
				Progress: func(step string, n, of int) { progress.show("%d/%d %s", n, of, step) }})
			if err != nil {
				return err
			}
			progress.done()
			fmt.Fprintf(c.OutOrStdout(), "lab %s is up: %d hosts, %d links; onpath lab exec HOST COMMAND, onpath lab down %s\n",
				up.Name(), len(t.Hosts), len(t.Links), up.Name())
			return nil
		},
	}
	c.Flags().StringVar(&l.name, "name", "", "name of the lab (default: the file's)")
	c.Flags().StringVar(&l.emulation, "emulation", lab.EmulateAuto,
		"who delays and loses: auto, netem (the kernel) or relay (a process of the lab)")
	c.Flags().BoolVar(&l.ipNetNS, "ip-netns", false, "name the hosts for ip netns too, as LAB-HOST")
	return c
}

func (l *labFlags) down() *cobra.Command {
	all := false
	c := &cobra.Command{
		Use: "down [NAME|FILE]", Short: "End a lab and all that runs in its hosts",
		Long: "End a lab and all that runs in its hosts, and take off what onpath's agents left\nthere (onpath node off). Without a " +
			"name: the only one there is. What a crash left\nis removed as well.",
		Example: examples("sudo onpath lab down two-hosts", "sudo onpath lab down --all"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: l.complete,
		RunE: func(c *cobra.Command, args []string) error {
			if err := needsRoot(c); err != nil {
				return err
			}
			names := args
			if all {
				list, err := lab.List(l.stateDir)
				if err != nil {
					return err
				}
				for _, s := range list {
					names = append(names, s.Name)
				}
				if len(list) == 0 {
					fmt.Fprintln(c.ErrOrStderr(), noLab)
				}
			} else if len(names) == 0 {
				names = []string{""}
			}
			for _, name := range names {
				up, err := l.open(name)
				if err != nil {
					return err
				}
				if err := nodesOff(c.Context(), up, c.ErrOrStderr()); err != nil {
					return err
				}
				if err := up.Down(c.Context()); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "lab %s is down\n", up.Name())
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all labs")
	return c
}

// nodesOff takes off what agents in a lab's hosts left behind, which outlives
// them: pins and folders that a host shares with the machine, and processes in
// namespaces of their own.
func nodesOff(ctx context.Context, up *lab.Lab, w io.Writer) error {
	if err := up.End(ctx); err != nil {
		return err
	}
	var errs []error
	for _, h := range up.Topology().Hosts {
		if !h.Private { // its list of agents is the machine's
			ns, err := roster.At(up.NetNS(h.Name))
			if err != nil {
				continue // a lab that is half up: nothing could run there
			}
			if list, err := roster.In(roster.Dir, ns); err == nil && len(list) == 0 {
				continue
			}
		} else if _, err := os.Stat(up.NetNS(h.Name)); err != nil {
			continue
		}
		out, err := up.Exec(ctx, h.Name, "/proc/self/exe", "node", "off", "--all")
		if err != nil {
			errs = append(errs, err)
		}
		for line := range strings.Lines(string(out)) {
			if what, ok := strings.CutPrefix(line, "removed "); ok {
				fmt.Fprintf(w, "%s: removed %s", h.Name, what)
			}
		}
	}
	return errors.Join(errs...)
}

// open finds a lab by name, by the file it was made from, or as the only one.
func (l *labFlags) open(arg string) (*lab.Lab, error) {
	if arg == "" {
		list, err := lab.List(l.stateDir)
		if err != nil {
			return nil, err
		}
		if len(list) != 1 {
			names := make([]string, len(list))
			for i, s := range list {
				names[i] = s.Name
			}
			if len(list) == 0 {
				return nil, onpath.Errorf(onpath.CodeNotFound, noLab)
			}
			return nil, badUsage("%d labs are up: %s; say which", len(list), strings.Join(names, ", "))
		}
		arg = list[0].Name
	}
	if strings.ContainsRune(arg, os.PathSeparator) || filepath.Ext(arg) == ".yaml" || filepath.Ext(arg) == ".yml" {
		t, err := lab.ParseFile(arg)
		if err != nil {
			return nil, err
		}
		arg = t.Name
	}
	return lab.Open(l.stateDir, arg)
}

func (l *labFlags) complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	list, _ := lab.List(l.stateDir)
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveDefault
}

func (l *labFlags) status() *cobra.Command {
	return &cobra.Command{
		Use: "status [NAME|FILE]", Short: "Show labs, or one lab's hosts, links and processes",
		Example: examples("sudo onpath lab status", "sudo onpath lab status two-hosts -o yaml"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: l.complete,
		RunE: func(c *cobra.Command, args []string) error {
			if err := l.checkOutput(); err != nil {
				return err
			}
			if err := needsRoot(c); err != nil {
				return err
			}
			if len(args) == 0 {
				return l.list(c)
			}
			up, err := l.open(args[0])
			if err != nil {
				return err
			}
			s, err := up.Status(c.Context())
			if err != nil {
				return err
			}
			return l.print(c, s, func(w io.Writer) error { return labTable(w, s) })
		},
	}
}

func (l *labFlags) list(c *cobra.Command) error {
	list, err := lab.List(l.stateDir)
	if err != nil {
		return err
	}
	return l.print(c, append([]lab.Summary{}, list...), func(w io.Writer) error {
		if len(list) == 0 {
			_, err := fmt.Fprintln(c.ErrOrStderr(), noLab)
			return err
		}
		t := table.New("NAME", "PHASE", ">HOSTS", ">LINKS", ">AGE")
		for _, s := range list {
			t.Row(s.Name, s.Phase, fmt.Sprint(s.Hosts), fmt.Sprint(s.Links), render.Age(s.Created, time.Now()))
		}
		if err := t.Write(w); err != nil {
			return err
		}
		for _, s := range list {
			if s.Left {
				fmt.Fprintf(c.ErrOrStderr(), "onpath lab down %s removes what was left\n", s.Name)
			}
		}
		return nil
	})
}

func labTable(w io.Writer, s *lab.Status) error {
	fmt.Fprintf(w, "lab %s: %s, links emulated by %s\n\n", s.Name, s.Phase, s.Emulation)
	hosts := table.New("HOST", "INTERFACE", "STATE", ">MTU", "ADDRESSES", ">RX", ">TX", ">DROPPED")
	for _, h := range s.Hosts {
		if h.Missing != "" {
			hosts.Row(h.Name, "", h.Missing)
		}
		for _, i := range h.Interfaces {
			state := "down"
			if i.Up {
				state = "up"
			}
			var addresses []string
			for _, a := range i.Addresses {
				addresses = append(addresses, a.String())
			}
			hosts.Row(h.Name, i.Name, state, fmt.Sprint(i.MTU), strings.Join(addresses, ","), fmt.Sprint(i.RxPackets),
				fmt.Sprint(i.TxPackets), fmt.Sprint(i.Dropped))
		}
	}
	if err := hosts.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	links := table.New("FROM", "TO", "KIND", "RATE", "DELAY", "LOSS", ">PACKETS", ">LOST", ">DROPPED")
	for _, k := range s.Links {
		for _, d := range []struct {
			from, to string
			is       lab.DirectionStatus
		}{{k.A, k.B, k.There}, {k.B, k.A, k.Back}} {
			rate, delay, loss := "", "", ""
			if s := d.is.Shape; s.Rate != 0 {
				rate = s.Rate.String()
			}
			if s := d.is.Shape; s.Delay != 0 {
				delay = s.Delay.String()
			}
			if s := d.is.Shape; s.Loss != 0 {
				loss = fmt.Sprintf("%.3g %%", s.Loss*100)
			}
			links.Row(d.from, d.to, k.Kind, rate, delay, loss, fmt.Sprint(d.is.Packets), fmt.Sprint(d.is.Lost), fmt.Sprint(d.is.Dropped))
		}
	}
	if err := links.Write(w); err != nil || len(s.Processes) == 0 {
		return err
	}
	fmt.Fprintln(w)
	processes := table.New("PROCESS", "HOST", ">PID", "STATE", "LOG")
	for _, p := range s.Processes {
		state := "ended"
		if p.Running {
			state = "running"
		}
		processes.Row(p.Name, p.Host, fmt.Sprint(p.PID), state, p.Log)
	}
	return processes.Write(w)
}

func (l *labFlags) exec() *cobra.Command {
	name := ""
	c := &cobra.Command{
		Use: "exec HOST [--] COMMAND [ARGUMENT…]", Short: "Run a command inside a host of a lab",
		Long: "Run a command inside a host of a lab: in its network namespace, and its mount\nnamespace if it has one. The exit " +
			"code is the command's.",
		Example: examples("sudo onpath lab exec client ping -c3 10.9.0.2", "sudo onpath lab exec --lab two-hosts origin bash"),
		Args:    cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := needsRoot(c); err != nil {
				return err
			}
			up, err := l.open(name)
			if err != nil {
				return err
			}
			if up.Topology().Host(args[0]) == nil {
				var hosts []string
				for _, h := range up.Topology().Hosts {
					hosts = append(hosts, h.Name)
				}
				e := onpath.Errorf(onpath.CodeNotFound, "lab %s has no host %q", up.Name(), args[0])
				e.Remedy = "its hosts are " + strings.Join(hosts, ", ")
				return e
			}
			command := args[1:]
			if command[0] == "--" && len(command) > 1 { // as onpath exec takes it
				command = command[1:]
			}
			cmd := up.Command(args[0], command[0], command[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()
			return status(runForwarding(cmd))
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&name, "lab", "", "which lab (default: the only one)")
	return c
}

// runForwarding runs cmd, and hands on the signals that are sent to us alone: a
// Ctrl-C on a terminal reaches both.
func runForwarding(cmd *exec.Cmd) error {
	signals := make(chan os.Signal, 1)
	handed := []os.Signal{syscall.SIGTERM, syscall.SIGHUP}
	if in, ok := cmd.Stdin.(*os.File); !ok || !terminal.Is(in) {
		handed = append(handed, syscall.SIGINT)
	} else {
		foreground.Store(true)
		defer foreground.Store(false)
	}
	signal.Notify(signals, handed...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may have ended
			case <-ended:
				return
			}
		}
	}()
	return cmd.Wait()
}

// status passes on the exit code of a command that ran.
func status(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exitStatus(128 + int(w.Signal()))
	}
	return exitStatus(exit.ExitCode())
}
