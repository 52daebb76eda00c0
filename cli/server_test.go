package cli

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/config"
)

// systemd listens in the place of the service manager, and gives what it is told next.
func systemd(t *testing.T) (told func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		_ = l.SetReadDeadline(time.Now().Add(time.Minute))
		b := make([]byte, 1000)
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// TestTellsReady: systemd hears that the server is up once its socket and listener
// answer, and the unit waits for that however long it takes.
func TestTellsReady(t *testing.T) {
	dir := t.TempDir()
	told := systemd(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	conf := config.Server{StateDir: filepath.Join(dir, "server"), Socket: filepath.Join(dir, "s.sock"), Listen: free.Addr().String()}
	if err := conf.Complete(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, &conf, slog.New(slog.DiscardHandler), func() {}) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if got := told(); got != "READY=1\nSTATUS=serves on "+conf.Socket+" and "+conf.Listen {
		t.Errorf("told %q", got)
	}
	c := client.Unix(conf.Socket)
	defer c.Close()
	if _, err := c.Tokens(ctx); err != nil {
		t.Error(err)
	}
	l, err := net.Dial("tcp", conf.Listen)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	unit, err := os.ReadFile("../packaging/systemd/onpath-server.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Type=notify", "TimeoutStartSec=infinity"} {
		if !regexp.MustCompile("(?m)^" + want + "$").Match(unit) {
			t.Errorf("onpath-server.service lacks %s", want)
		}
	}
}

// TestListenConflict: a port that is taken is named with its key and the remedy.
func TestListenConflict(t *testing.T) {
	l, err := listen("metrics", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]string{
		l.Addr().String(): "metrics: " + l.Addr().String() + ": address already in use; another program listens there",
		"192.0.2.77:1":    "metrics: 192.0.2.77:1: cannot assign requested address; write an address that this machine has",
	} {
		if _, err := listen("metrics", address); err == nil || !strings.HasPrefix(err.Error(), want) || exitCode(err) != exitUnavailable {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestTellsThatItWaits: a server that waits for its turn counts as started.
func TestTellsThatItWaits(t *testing.T) {
	told := systemd(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := url.URL{Scheme: "http", Host: free.Addr().String()}
	free.Close()
	c := embed.NewConfig()
	c.Name, c.Dir = "cluster", filepath.Join(t.TempDir(), "etcd")
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{address}, []url.URL{address}
	c.InitialCluster = c.Name + "=" + peer.String()
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cluster, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	<-cluster.Server.ReadyNotify()
	conf := config.Server{}
	conf.Etcd.Endpoints = []string{address.String()}
	quiet := slog.New(slog.DiscardHandler)
	store, err := openStore(t.Context(), &conf, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, resign, err := lead(t.Context(), &conf, store, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer resign()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, _, err := lead(ctx, &conf, store, quiet); ended <- err }()
	name, _ := os.Hostname()
	if got := told(); got != "READY=1\nSTATUS=waits until the server on "+name+" is gone" {
		t.Errorf("told %q", got)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("it did not wait")
	}
}
