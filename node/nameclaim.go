package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// claimPatience is how long a name may be taken by what does not listen: an agent
// does at once, and one that ends lets go of it.
const claimPatience = time.Second

// Claim keeps every other agent of the node's name, and Off, out of the calling
// thread's network namespace until it is released or the process ends, however
// it ends: agents of one name have the same devices there, whatever their state
// folders and mounts. It touches nothing that agents share.
//
// The claim is an abstract unix socket, which belongs to the network namespace
// alone. Everybody in it may take any such name, so one that a stranger has is no
// refusal, only a warning; what is pinned has a lock of its own (datapath/ebpf).
func Claim(name, stateDir string, log *slog.Logger) (release func(), err error) {
	at := &net.UnixAddr{Name: claimAddress(name), Net: "unix"}
	for began := time.Now(); ; time.Sleep(claimPatience / 20) {
		l, err := net.ListenUnix(at.Net, at)
		if err == nil {
			return answerClaims(l, stateDir), nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("claim the name %s in this network namespace: %w", name, err)
		}
		other, err := askClaimant(at)
		switch {
		case err == nil && other.trusted():
			return nil, other.refusal(name)
		case err == nil, time.Since(began) > claimPatience:
			log.Warn("another process has taken the address by which agents of one name find each other; a second one with other mounts would not be noticed",
				"address", at.Name, "process", other.pid, "user", other.uid, "remedy", "end that process, then start the agent again")
			return func() {}, nil
		}
	}
}

// claimAddress is where agents of a name meet; a leading @ means abstract.
func claimAddress(name string) string {
	const longest = 64 // of 107 bytes that an address may have
	if len(name) > longest {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:16])
	}
	return "@onpath/node/" + name
}

// answerClaims tells who asks where the agent's state is.
func answerClaims(l *net.UnixListener, stateDir string) (release func()) {
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // no file descriptors just now
				time.Sleep(claimPatience)
				continue
			}
			_ = c.SetDeadline(time.Now().Add(claimPatience))
			_, _ = io.WriteString(c, stateDir+"\n")
			_ = c.Close()
		}
	})
	return func() { _ = l.Close(); done.Wait() }
}

// claimant is who has an address.
type claimant struct {
	pid      int32 // 0: not to be seen from here
	uid      uint32
	stateDir string // "": it does not say
}

// askClaimant fails where nobody listens.
func askClaimant(at *net.UnixAddr) (claimant, error) {
	var other claimant
	c, err := net.DialUnix(at.Net, nil, at)
	if err != nil {
		return other, err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return other, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return other, errors.Join(e, err)
	}
	other.pid, other.uid = cred.Pid, cred.Uid
	_ = c.SetDeadline(time.Now().Add(claimPatience))
	said, _ := io.ReadAll(io.LimitReader(c, unix.PathMax))
	other.stateDir, _, _ = strings.Cut(string(said), "\n")
	return other, nil
}

// trusted is root, or who runs this program.
func (c claimant) trusted() bool { return c.uid == 0 || int(c.uid) == os.Geteuid() }

func (c claimant) refusal(name string) error {
	var who []string
	if c.pid != 0 {
		who = append(who, fmt.Sprintf("process %d", c.pid))
	}
	if c.stateDir != "" {
		who = append(who, "state folder "+c.stateDir)
	}
	e := onpath.Errorf(onpath.CodeConflict, "an agent of node %s runs in this network namespace", name)
	if len(who) > 0 {
		e.Message += " (" + strings.Join(who, ", ") + ")"
	}
	e.Remedy = "stop it first; two of one name would take the data path from each other"
	return e
}
