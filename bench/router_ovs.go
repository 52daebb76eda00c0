package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
)

// ovsTools are the programs of Open vSwitch that its contestant runs.
var ovsTools = []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"}

// ovsSchema is where packages put the scheme of its database.
const ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"

// ovsTimeout is how long each of its steps may take.
const ovsTimeout = 15 * time.Second

// The switch's numbers of the router's devices.
var ovsPorts = map[string]int{devIn: 1, devOut: 2}

// ovsRouter is Open vSwitch with its datapath in user space, on packet sockets:
// what it is without a module of its own in the kernel. Its rules write addresses
// and the hop limit, as a router does.
func ovsRouter(name string, way ovsWay) router {
	return router{name, func(ctx context.Context, r *Run, l *line) error {
		s, err := newOVS(l)
		if err != nil {
			return err
		}
		if err := testnet.Set(l.router, "ipv4/ip_forward=0"); err != nil { // or the kernel forwards a second copy
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 4*ovsTimeout)
		defer cancel()
		pid, err := s.start(ctx)
		if err != nil {
			return lacking(fmt.Sprintf("Open vSwitch is installed, but does not start: %v", err))
		}
		for _, h := range hops {
			if err := s.rules(ctx, h, way); err != nil {
				return err
			}
		}
		if err := errors.Join(widen(pid), pinProcess(pid, r.cpu)); err != nil {
			return err
		}
		l.keep(pid)
		return nil
	}}
}

// ovsBuffer is what a packet socket of the switch may hold, bytes. By default one
// holds fifty frames that came by XDP, each in a page of its own, fewer than the
// kernel hands over at once.
const ovsBuffer = 16 << 20

// widen gives the packet sockets of a process larger buffers. Open vSwitch has no
// setting for that, and the system's would be everybody's.
func widen(pid int) error {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("find the switch's sockets: %w", err)
	}
	defer unix.Close(p)
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return fmt.Errorf("find the switch's sockets: %w", err)
	}
	for _, e := range list {
		theirs, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdGetfd(p, theirs, 0)
		if err != nil {
			continue // closed meanwhile
		}
		if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_PACKET {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, ovsBuffer)
			if err != nil {
				unix.Close(fd)
				return fmt.Errorf("widen the switch's sockets: %w", err)
			}
		}
		unix.Close(fd)
	}
	return nil
}

// ovsWay is what the switch does with a packet.
type ovsWay int

const (
	// ovsForward is one rule for all flows of a direction.
	ovsForward ovsWay = iota
	// ovsTrack has a group choose one of two next hops for each flow, and connection
	// tracking remember the choice for both directions: what steering to instances
	// takes, without asking the switch's slow path about each flow.
	ovsTrack
	// ovsChoose has the group choose by a hash of all that tells flows apart. The
	// slow path is asked about each flow, and nothing is known of answers.
	ovsChoose
)

// ovs is a switch in a line's router.
type ovs struct {
	*line
	dir string // of its database, sockets and logs
}

func newOVS(l *line) (*ovs, error) {
	for _, tool := range ovsTools {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, lacking(fmt.Sprintf("%s is not installed (Debian's openvswitch-switch has it)", tool))
		}
	}
	if _, err := os.Stat(ovsSchema); err != nil {
		return nil, lacking("Open vSwitch's database scheme is not at " + ovsSchema)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return nil, lacking("its bridge needs /dev/net/tun, which is not there")
	}
	s := &ovs{l, filepath.Join(l.Dir(), "ovs")}
	return s, os.Mkdir(s.dir, 0o755)
}

func (s *ovs) path(name string) string { return filepath.Join(s.dir, name) }

// start runs the database and the switch, with both devices in one bridge, and
// gives the switch's process.
func (s *ovs) start(ctx context.Context) (pid int, err error) {
	if err := s.run(ctx, "ovsdb-tool", "create", s.path("conf.db"), ovsSchema); err != nil {
		return 0, err
	}
	db := "unix:" + s.path("db.sock")
	if _, err := s.serve("ovsdb-server", s.path("conf.db"), "--remote=p"+db, "--unixctl="+s.path("db.ctl")); err != nil {
		return 0, err
	}
	if err := s.await(ctx, "db.sock"); err != nil {
		return 0, err
	}
	if err := s.configure(ctx, db, "--no-wait", "init"); err != nil {
		return 0, err
	}
	if pid, err = s.serve("ovs-vswitchd", db, "--unixctl="+s.path("switch.ctl")); err != nil {
		return 0, err
	}
	args := []string{"--timeout=15", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow15"}
	for dev, port := range ovsPorts {
		args = append(args, "--", "add-port", "br0", dev, "--", "set", "interface", dev, fmt.Sprintf("ofport_request=%d", port))
	}
	if err := s.configure(ctx, db, args...); err != nil {
		return 0, err
	}
	return pid, s.await(ctx, "br0.mgmt")
}

// rules have the switch route one direction.
func (s *ovs) rules(ctx context.Context, h hop, way ovsWay) error {
	in := ovsPorts[h.in]
	leave := fmt.Sprintf("mod_dl_src:%s,mod_dl_dst:%s,dec_ttl,output:%d", h.src, h.dst, ovsPorts[h.out])
	switch way {
	case ovsForward:
		return s.program(ctx, "add-flow", fmt.Sprintf("in_port=%d,ip,actions=%s", in, leave))
	case ovsChoose:
		return errors.Join(
			s.program(ctx, "add-group", fmt.Sprintf("group_id=%d,type=select,selection_method=hash,fields(ip_src,ip_dst,udp_src,udp_dst),bucket=actions=%s,bucket=actions=%s", in, leave, leave)),
			s.program(ctx, "add-flow", fmt.Sprintf("in_port=%d,ip,actions=group:%d", in, in)))
	}
	learn := func(mark int) string {
		return fmt.Sprintf("bucket=actions=ct(commit,zone=1,exec(set_field:%d->ct_mark)),%s", mark, leave)
	}
	errs := []error{
		s.program(ctx, "add-group", fmt.Sprintf("group_id=%d,type=select,%s,%s", in, learn(1), learn(2))),
		s.program(ctx, "add-flow", fmt.Sprintf("table=0,in_port=%d,ip,actions=ct(zone=1,table=1)", in)),
		s.program(ctx, "add-flow", fmt.Sprintf("table=1,in_port=%d,ip,ct_state=+trk+new,actions=group:%d", in, in)),
	}
	for mark := 1; mark <= 2; mark++ {
		errs = append(errs, s.program(ctx, "add-flow", fmt.Sprintf("table=1,in_port=%d,ip,ct_state=+trk-new,ct_mark=%d,actions=%s", in, mark, leave)))
	}
	return errors.Join(errs...)
}

// program talks OpenFlow to the switch.
func (s *ovs) program(ctx context.Context, command, what string) error {
	return s.run(ctx, "ovs-ofctl", "-O", "OpenFlow15", command, "unix:"+s.path("br0.mgmt"), what)
}

func (s *ovs) configure(ctx context.Context, db string, args ...string) error {
	return s.run(ctx, "ovs-vsctl", append([]string{"--db=" + db}, args...)...)
}

// command is one of the switch's programs, all whose files are in its folder.
func (s *ovs) command(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = append(os.Environ(), "OVS_RUNDIR="+s.dir, "OVS_LOGDIR="+s.dir, "OVS_DBDIR="+s.dir, "OVS_SYSCONFDIR="+s.dir)
	cmd.Dir = s.dir
	return cmd
}

// run waits for a program's end.
func (s *ovs) run(ctx context.Context, tool string, args ...string) error {
	var out []byte
	err := netnsrun.Do(s.router, func() (err error) {
		out, err = s.command(exec.CommandContext(ctx, tool, args...)).CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// serve starts a program that runs until the line is closed, its words in a file.
func (s *ovs) serve(tool string, args ...string) (pid int, err error) {
	log, err := os.Create(s.path(tool + ".log"))
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", tool, err)
	}
	defer log.Close()
	cmd := s.command(exec.Command(tool, append(args, "--no-chdir")...))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	ended, err := netnsrun.Start(s.router, cmd)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", tool, err)
	}
	s.After(func() error {
		_ = cmd.Process.Kill()
		<-ended
		return nil
	})
	return cmd.Process.Pid, nil
}

// await waits for a socket of the switch.
func (s *ovs) await(ctx context.Context, socket string) error {
	for until := time.Now().Add(ovsTimeout); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(s.path(socket)); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(until) {
			said, _ := os.ReadFile(s.path("ovs-vswitchd.log"))
			return errors.New("Open vSwitch made no " + socket + ": " + strings.TrimSpace(string(said)))
		}
	}
}
