package etcd_test

import (
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/onpath/onpath/store/etcd"
	"github.com/onpath/onpath/store/storetest"
)

// TestExternal sits the exam against an etcd reached through its gRPC API.
func TestExternal(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		s := open(t, etcd.Options{
			Endpoints: []string{startServer(t)}, Logger: slog.New(slog.DiscardHandler),
			Buffer: 16, Patience: 200 * time.Millisecond,
		})
		return storetest.Harness{Store: s, Compact: s.Compact, Slow: 50}
	})
}

// startServer runs an etcd that serves clients on a loopback port of its choice.
func startServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := url.URL{Scheme: "http", Host: l.Addr().String()}
	_ = l.Close()
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c := embed.NewConfig()
	c.Name, c.Dir = "cluster", filepath.Join(t.TempDir(), "etcd")
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.InitialCluster = c.Name + "=" + peer.String()
	c.TickMs, c.ElectionMs = 10, 100
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return client.String()
}
