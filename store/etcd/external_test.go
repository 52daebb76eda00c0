package etcd_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
	"github.com/onpath/onpath/store/storetest"
)

// TestExternal sits the exam against an etcd reached through its gRPC API.
func TestExternal(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		s := open(t, etcd.Options{
			Endpoints: []string{startServer(t, onpath.MaxWrite)}, Logger: slog.New(slog.DiscardHandler),
			Buffer: 16, Patience: 200 * time.Millisecond,
		})
		return storetest.Harness{Store: s, Compact: s.Compact, Slow: 50}
	})
}

// TestExternalRefusesMany: a cluster as it is installed takes what may be written
// in parts, and of more it is said what to do.
func TestExternalRefusesMany(t *testing.T) {
	s := open(t, etcd.Options{Endpoints: []string{startServer(t, embed.DefaultMaxTxnOps)}, Logger: slog.New(slog.DiscardHandler)})
	many := func(n int) (changes []onpath.Change) {
		for i := range n {
			o := &onpath.Tenant{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindTenant}, Metadata: onpath.Metadata{Name: fmt.Sprint("t", i)}}
			changes = append(changes, onpath.Change{Key: onpath.KeyOf(o), Object: o, Version: onpath.AnyVersion})
		}
		return changes
	}
	if err := commit(t.Context(), s, many(onpath.SureWrite)); err != nil {
		t.Error(err)
	}
	if err := commit(t.Context(), s, many(200)); onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), "--max-txn-ops=4001") {
		t.Errorf("200 changes: %v", err)
	}
}

// TestExternalTellsItsUse: what a cluster holds, and may hold, is known.
func TestExternalTellsItsUse(t *testing.T) {
	s := open(t, etcd.Options{Endpoints: []string{startServer(t, onpath.MaxWrite)}, Logger: slog.New(slog.DiscardHandler)})
	await(t, "the use of the cluster is known", func() bool { u := s.Use(); return u.InUse > 0 && u.InUse < u.Quota && !u.Refuses })
}

// startServer runs an etcd that serves clients on a loopback port of its choice
// and takes maxOps operations in one transaction.
func startServer(t *testing.T, maxOps uint) string {
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
	c.MaxTxnOps = maxOps
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return client.String()
}
