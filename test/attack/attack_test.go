package attack_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

const head = `"apiVersion":"onpath/v1alpha1"`

// object is the body of one.
func object(kind, tenant, name, spec string) string {
	return fmt.Sprintf(`{%s,"kind":%q,"metadata":{"name":%q,"tenant":%q},"spec":%s}`, head, kind, name, tenant, spec)
}

// chain is mallory's, of what it selects.
func chain(selects string) string {
	return object("Chain", "evil", "loot", `{`+selects+`,"through":[{"function":"fw","instances":1}]}`)
}

func function(image string) string {
	return object("Function", "evil", "tool", fmt.Sprintf(`{"container":{"image":%q}}`, image))
}

func claim(prefix, method string) string {
	return object("PrefixClaim", "evil", "loot", fmt.Sprintf(`{"prefix":%q,"proof":%q}`, prefix, method))
}

// attack is a request that must come to nothing.
type attack struct {
	who          *somebody
	method, path string
	body         string
	says         string // in the answer; "": anything
	codes        []int  // default 403
}

// TestAttacks: each attack on the server is refused, what it asked for is not there, and the
// neighbours' objects are as they were.
func TestAttacks(t *testing.T) {
	s := newServer(t)
	ctx := t.Context()
	mallory := s.joined(auth.TokenRequest{Role: auth.RoleUser, Name: "mallory", Tenant: "evil"})
	node := s.joined(auth.TokenRequest{Role: auth.RoleNode, Name: "gw9", Cloudlet: "fra1"})
	viewer, _ := s.bearer(auth.TokenRequest{Role: auth.RoleViewer, Name: "board", Tenant: "shop"})
	scoped, _ := s.bearer(auth.TokenRequest{Role: auth.RoleUser, Name: "ci", Tenant: "shop", Kinds: []onpath.Kind{onpath.KindHosts}})
	stolen, id := s.bearer(auth.TokenRequest{Role: auth.RoleUser, Name: "old", Tenant: "shop"})
	if err := s.operator.DeleteToken(ctx, id); err != nil {
		t.Fatal(err)
	}
	expired, _ := s.bearer(auth.TokenRequest{Role: auth.RoleUser, Name: "late", Tenant: "shop", TTL: onpath.Duration(time.Minute)})
	guessed := s.stranger()
	guessed.bearer = strings.Repeat("A", 90)
	forged := s.stranger(certificate(t, "onpath:operator/root"))
	before := everything(t, s)
	s.clock.mu.Lock()
	s.clock.lead = 2 * time.Minute // expired has
	s.clock.mu.Unlock()

	put := func(who *somebody, kind, tenant, name, body, says string, codes ...int) attack {
		return attack{who, "PUT", "/v1/" + kind + "/" + tenant + "/" + name, body, says, codes}
	}
	bad := []int{400}
	table := map[string]attack{
		"a stranger lists chains":                {s.stranger(), "GET", "/v1/chains", "", "certificate", nil},
		"a stranger writes":                      {s.stranger(), "PUT", "/v1/hosts/shop/site", object("Hosts", "shop", "site", `{"addresses":["10.0.0.1"]}`), "", nil},
		"a forged certificate of an operator":    {forged, "GET", "/v1/chains", "", "", []int{0, 403}},
		"a guessed token":                        {guessed, "GET", "/v1/chains?tenant=shop", "", "", nil},
		"a stolen token that was taken back":     {stolen, "GET", "/v1/chains?tenant=shop", "", "taken back", nil},
		"an expired token":                       {expired, "GET", "/v1/chains?tenant=shop", "", "expired", nil},
		"a viewer's token writes":                put(viewer, "hosts", "shop", "site", object("Hosts", "shop", "site", `{"addresses":["10.0.0.1"]}`), ""),
		"a viewer's token deletes":               {viewer, "DELETE", "/v1/chains/shop/web", "", "", nil},
		"a viewer's token captures":              {viewer, "GET", "/v1/capture?instance=shop/x", "", "", nil},
		"a token of one kind reads another":      {scoped, "GET", "/v1/chains?tenant=shop", "", "with this token", nil},
		"a token of one kind makes a wider one":  {scoped, "POST", "/v1/tokens", `{"role":"user","name":"x","tenant":"shop"}`, "", nil},
		"a token of one kind watches everything": {scoped, "GET", "/v1/watch", "", "", nil},
		"a bearer token joins":                   {s.stranger(), "POST", "/v1/join", fmt.Sprintf(`{"secret":%q,"name":"","request":""}`, secretOf(viewer.bearer)), "bearer token", nil},
		"a user makes an operator":               {mallory, "POST", "/v1/tokens", `{"role":"operator","name":"root"}`, "", nil},
		"a user revokes the operator":            {mallory, "POST", "/v1/revoke", `{"identity":"onpath:operator/root"}`, "", nil},
		"a user credits an account":              {mallory, "POST", "/v1/accounts/evil/credit", `{"amount":"1000000"}`, "", []int{400, 403, 404, 405}},
		"a user reads a neighbour's chain":       {mallory, "GET", "/v1/chains/shop/web", "", "", nil},
		"a user lists a neighbour's chains":      {mallory, "GET", "/v1/chains?tenant=shop", "", "", nil},
		"a user deletes a neighbour's chain":     {mallory, "DELETE", "/v1/chains/shop/web", "", "", nil},
		"a user overwrites a neighbour's hosts":  put(mallory, "hosts", "shop", "site", object("Hosts", "shop", "site", `{"addresses":["10.0.0.1"]}`), ""),
		"the body names another tenant":          put(mallory, "hosts", "evil", "x", object("Hosts", "shop", "site", `{"addresses":["10.0.0.1"]}`), "", 400, 403),
		"a user applies into a neighbour": {mallory, "POST", "/v1/apply", `{"objects":[` + object("Hosts", "shop", "site",
			`{"addresses":["10.0.0.1"]}`) + `]}`, "", nil},
		"a user reads a neighbour's log":         {mallory, "GET", "/v1/audit?tenant=shop", "", "", nil},
		"a user execs in a neighbour's instance": {mallory, "GET", "/v1/instances/shop/x/exec?command=sh", "", "", nil},
		"a user captures at a gateway":           {mallory, "GET", "/v1/capture?node=gw1", "", "", nil},
		"a user causes faults":                   {mallory, "POST", "/v1/faults", `{}`, "", []int{403, 404, 405}},
		"a user widens its own tenant":           {mallory, "PUT", "/v1/tenants/evil", object("Tenant", "", "evil", `{"addresses":["0.0.0.0/0"]}`), "", nil},
		"a user changes a node":                  {mallory, "DELETE", "/v1/nodes/gw1", "", "", nil},
		"a user backs the server up":             {mallory, "GET", "/v1/backup", "", "", nil},
		"a node reads chains":                    {node, "GET", "/v1/chains", "", "", nil},
		"a node writes a Node":                   {node, "DELETE", "/v1/nodes/gw1", "", "", nil},
		"a node execs":                           {node, "GET", "/v1/instances/shop/x/exec?command=sh", "", "", nil},
		"rules for everything":                   put(mallory, "chains", "evil", "loot", chain(`"from":"any","to":"any"`), "may select only"),
		"rules for 0.0.0.0/0":                    put(mallory, "chains", "evil", "loot", chain(`"from":"any","to":{"prefixes":["0.0.0.0/0"]}`), "may select only"),
		"rules for a neighbour":                  put(mallory, "chains", "evil", "loot", chain(`"from":"any","to":{"prefixes":["203.0.113.10"]}`), "may select only"),
		"rules from a neighbour":                 put(mallory, "chains", "evil", "loot", chain(`"from":{"prefixes":["203.0.113.10"]},"to":"any"`), "may select only"),
		"rules for half a neighbour by select":   put(mallory, "chains", "evil", "loot", chain(`"from":"any","to":"any","select":[{"destinations":["203.0.113.0/24"]}]`), "may select only"),
		"rules by a neighbour's hosts":           put(mallory, "chains", "evil", "loot", chain(`"from":"any","to":{"hosts":"shop/site"}`), "", 400, 403),
		"the operator's tier":                    put(mallory, "chains", "evil", "loot", chain(`"tier":"operator","from":"any","to":"any"`), "tier operator", 400, 403),
		"a neighbour's function":                 put(mallory, "chains", "evil", "loot", object("Chain", "evil", "loot", `{"from":"any","to":"any","through":[{"function":"shop/fw"}]}`), ""),
		"a claim of everything":                  put(mallory, "prefixclaims", "evil", "loot", claim("0.0.0.0/0", "password"), "single addresses", bad...),
		"a claim of a network by password":       put(mallory, "prefixclaims", "evil", "loot", claim("203.0.113.0/24", "password"), "single addresses", bad...),
		"a claim of loopback":                    put(mallory, "prefixclaims", "evil", "loot", claim("127.0.0.1", "password"), "nobody's", bad...),
		"a claim of a cloud's metadata":          put(mallory, "prefixclaims", "evil", "loot", claim("169.254.169.254", "password"), "nobody's", bad...),
		"a claim of a link-local address":        put(mallory, "prefixclaims", "evil", "loot", claim("fe80::1", "password"), "nobody's", bad...),
		"a claim of a node's address":            put(mallory, "prefixclaims", "evil", "loot", claim("192.0.2.7", "password"), "onpath itself"),
		"a claim of an instance's pool":          put(mallory, "prefixclaims", "evil", "loot", claim("100.100.0.9", "password"), "onpath itself"),
		"a claim that says it is proved":         put(mallory, "prefixclaims", "evil", "loot", strings.TrimSuffix(claim("203.0.113.10", "operator"), "}")+`,"state":"proved"}`, "", bad...),
		"the nodes' files as an image":           put(mallory, "functions", "evil", "tool", strings.Replace(function("host"), `"host"`, `"host","command":["cat"]`, 1), "nodes' files"),
		"a file of the nodes as an image":        put(mallory, "functions", "evil", "tool", function("/etc/shadow.tar"), ""),
		"a neighbour's image":                    put(mallory, "functions", "evil", "tool", function(onpath.ImageHost+"/shop/fw:1"), "images of tenant"),
		"an image from the metadata service":     put(mallory, "functions", "evil", "tool", function("169.254.169.254/latest/x"), "public domain"),
		"an image from loopback":                 put(mallory, "functions", "evil", "tool", function("127.0.0.1:2379/v2/keys"), "public domain"),
		"an image from a disguised address":      put(mallory, "functions", "evil", "tool", function("2130706433/x"), "public domain"),
		"a capability that leads out":            put(mallory, "functions", "evil", "tool", object("Function", "evil", "tool", `{"container":{"image":"registry.example/x:1","capabilities":["SYS_ADMIN"]}}`), "isolation", bad...),
		"a device of the node":                   put(mallory, "functions", "evil", "tool", object("Function", "evil", "tool", `{"container":{"image":"registry.example/x:1","devices":["mem"]}}`), "", bad...),
		"a setting of the whole kernel":          put(mallory, "functions", "evil", "tool", object("Function", "evil", "tool", `{"container":{"image":"registry.example/x:1","sysctls":{"kernel.core_pattern":"|/x"}}}`), "", bad...),
		"kernel code of its own":                 put(mallory, "functions", "evil", "tool", object("Function", "evil", "tool", `{"ebpf":{"object":"./x.o","code":"f0VMRg=="}}`), "", 400, 403),
		"more instances than its quota":          put(mallory, "deployments", "evil", "many", object("Deployment", "evil", "many", `{"function":"fw","instances":100,"place":{"cloudlets":["fra1"]}}`), "quota", 507),
		"an unknown field":                       put(mallory, "hosts", "evil", "x", object("Hosts", "evil", "x", `{"addresses":["10.0.0.1"],"root":true}`), "", bad...),
		"a name that leaves its key":             put(mallory, "hosts", "evil", "..%2F..%2Fshop%2Fsite", object("Hosts", "evil", "../../shop/site", `{"addresses":["10.0.0.1"]}`), "", 400, 403, 404),
		"a nested bomb":                          put(mallory, "hosts", "evil", "x", strings.Repeat(`{"a":`, 20_000)+"1"+strings.Repeat("}", 20_000), "", bad...),
		"a body without end":                     put(mallory, "hosts", "evil", "x", `{"kind":"`+strings.Repeat("x", 3<<20)+`"}`, "", 400, 413, 0),
		"a list of a million objects":            {mallory, "POST", "/v1/apply", `{"objects":[` + strings.Repeat(`{},`, 200_000) + `{}]}`, "", []int{400, 403, 413, 0}},
		"a path out of the log's folder":         {s.stranger(), "GET", "/log/tile/..%2F..%2F..%2Fauth%2Fca.key", "", "", []int{404, 400}},
		"a tile that is not there":               {s.stranger(), "GET", "/log/tile/0/x999/999", "", "", []int{404}},
		"a tile with a negative number":          {s.stranger(), "GET", "/log/tile/0/-01", "", "", []int{404}},
		"a watch of a neighbour":                 {mallory, "GET", "/v1/watch?tenant=shop", "", "", nil},
		"a trace of everybody's packets":         {mallory, "GET", "/v1/trace?tenant=shop&protocol=6&src=203.0.113.10&dst=10.0.0.1&srcPort=1&dstPort=2", "", "", []int{400, 403, 404, 405}},
		"the counters of whole nodes":            {mallory, "GET", "/v1/counters", "", "", nil},
		"a session as another node's":            {mallory, "GET", "/v1/session", "", "", []int{403, 404}},
		"a restore of a neighbour's old version": {mallory, "GET", "/v1/hosts/shop/site/history", "", "", []int{403, 404}},
		"another tenant's unconfirmed change":    {mallory, "POST", "/v1/unconfirmed/x/undo", "", "", []int{403, 404, 405}},
		"the metrics of the server":              {mallory, "GET", "/metrics", "", "", nil},
		"notifications of a neighbour":           {mallory, "GET", "/v1/notifications?tenant=shop", "", "", nil},
		"logs of a neighbour's instance":         {mallory, "GET", "/v1/instances/shop/x/logs", "", "", nil},
		"images of a neighbour, by the registry": {mallory, "GET", "/v2/shop/fw/tags/list", "", "", []int{401, 403, 404}},
	}
	if len(table) < 60 {
		t.Errorf("only %d attacks", len(table))
	}
	var refused []string // what must be in the log
	for what, a := range table {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			code, text := a.who.ask(ctx, a.method, a.path, a.body)
			if len(a.codes) == 0 {
				a.codes = []int{403}
			}
			ok := false
			for _, c := range a.codes {
				ok = ok || c == code
			}
			if !ok || !strings.Contains(text, a.says) {
				t.Errorf("%s %s: %d %s", a.method, a.path, code, text)
			}
			logged := code == 403 || a.method != "GET" && (code == 400 || code == 413 || code == 507)
			if u, err := url.Parse(a.path); err == nil && logged && u.Path != "/v1/join" {
				refused = append(refused, a.method+" "+u.Path)
			}
		})
	}
	if after := everything(t, s); after != before {
		t.Errorf("something came of it:\n%s\nwas\n%s", after, before)
	}
	entries := strings.Join(s.refusals(len(refused)), "\n")
	for _, what := range refused {
		if !strings.Contains(entries, what) {
			t.Errorf("the log does not say that %s was refused", what)
		}
	}
	if len(refused) < 40 || !strings.Contains(entries, `join as`) {
		t.Errorf("%d are refused:\n%s", len(refused), entries)
	}
}

// refusals are what the log says of refused sign-ins, once it has so many.
func (s *server) refusals(least int) (out []string) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); len(out) < least && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		out = nil
		if err := s.log.Audit("", 10_000, func(e onpath.LoggedEntry) error {
			if e.What == onpath.LogRefused {
				out = append(out, e.Message)
			}
			return nil
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	return out
}

// everything are the specifications of all objects that people write.
func everything(t *testing.T, s *server) string {
	t.Helper()
	var b strings.Builder
	for _, k := range onpath.Kinds() {
		if k.ReadOnly() || k == onpath.KindReservation {
			continue
		}
		list, _, err := s.operator.List(t.Context(), k, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			var part struct {
				Spec json.RawMessage `json:"spec"`
			}
			j, err := json.Marshal(o)
			if err != nil || json.Unmarshal(j, &part) != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s %s\n", onpath.KeyOf(o), part.Spec)
		}
	}
	return b.String()
}

func secretOf(word string) string {
	t, err := auth.ParseToken(word)
	if err != nil {
		return ""
	}
	return t.Secret
}

// certificate is one that somebody made for himself.
func certificate(t *testing.T, identity string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(identity)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), URIs: []*url.URL{u}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestEveryRoute: strangers are let in nowhere but where a door is open for all, tenants'
// users nowhere in what is another tenant's, and nothing that they ask ends in a fault.
func TestEveryRoute(t *testing.T) {
	s := newServer(t)
	ctx := t.Context()
	mallory := s.joined(auth.TokenRequest{Role: auth.RoleUser, Name: "mallory", Tenant: "evil"})
	operator := &somebody{http: s.operator.HTTP(), base: s.operator.URL()}
	r, text := operator.askAll(ctx, "/openapi.json")
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%d %v", r, err)
	}
	open := map[string]bool{"/healthz": true, "/readyz": true, "/version": true, "/v1/join": true}
	n := 0
	for path, methods := range doc.Paths {
		for method := range methods {
			method = strings.ToUpper(method)
			if method == "PARAMETERS" {
				continue
			}
			n++
			at := strings.NewReplacer("{tenant}", "shop", "{name}", "web", "{id}", "x", "{node}", "gw1").Replace(path)
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			if code, text := s.stranger().ask(ctx, method, at, ""); !open[path] && code != 403 {
				t.Errorf("a stranger: %s %s: %d %s", method, at, code, text)
			}
			code, text := mallory.ask(ctx, method, at+"?tenant=shop", "")
			if code >= 500 && code != 507 && code != 503 && code != 501 || code < 300 && strings.Contains(path, "{tenant}") {
				t.Errorf("a neighbour: %s %s: %d %s", method, at, code, text)
			}
			cancel()
		}
	}
	if n < 50 {
		t.Errorf("only %d routes", n)
	}
}
