package onpath

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Notification is what a function tells its owner (GNFC §III-D).
type Notification struct {
	// ID is the node's, and the same whenever the notification is sent again.
	ID       string            `json:"id"`
	Time     time.Time         `json:"time"` // by the node's clock, when it was accepted
	Tenant   string            `json:"tenant"`
	Instance string            `json:"instance"`
	Function string            `json:"function,omitempty"` // tenant/name
	Node     string            `json:"node"`
	Level    NotificationLevel `json:"level"`
	Title    string            `json:"title"`
	Text     string            `json:"text,omitempty"`
	Fields   map[string]string `json:"fields,omitempty"`
}

// Where a function tells its notifications, inside its own network namespace: POST /notify
// with level, title, text and fields as JSON. NotifySocket is an abstract unix socket, which
// belongs to the namespace.
const (
	NotifyAddress = "127.0.0.1:4798"
	NotifySocket  = "@onpath/notify"
	// NotifyVariable names the address in a container's environment.
	NotifyVariable = "ONPATH_NOTIFY"
)

// NumberedNotification is one as its node numbers it, for the server.
type NumberedNotification struct {
	Number uint64       `json:"number"`
	Said   Notification `json:"said"`
}

// NotificationLevel says how much a notification matters.
type NotificationLevel string

// The levels, the least first.
const (
	LevelInfo     NotificationLevel = "info"
	LevelWarning  NotificationLevel = "warning"
	LevelCritical NotificationLevel = "critical"
)

// Bounds of what a function may say at once, in bytes.
const (
	MaxNotificationTitle = 200
	MaxNotificationText  = 4096
	MaxNotificationField = 512 // key and value together
	MaxNotificationCount = 16  // of fields
)

// Validate checks what a function said, and fills in the level where none is given.
func (n *Notification) Validate() error {
	v := &validation{}
	enum(v, "level", &n.Level, LevelInfo, LevelInfo, LevelWarning, LevelCritical)
	if n.Title == "" {
		v.add("title", "say in a few words what happened", "is missing")
	}
	for _, part := range []struct {
		field, text string
		most        int
	}{{"title", n.Title, MaxNotificationTitle}, {"text", n.Text, MaxNotificationText}} {
		if len(part.text) > part.most {
			v.add(part.field, "", "has %d bytes; at most %d are possible", len(part.text), part.most)
		}
	}
	if len(n.Fields) > MaxNotificationCount {
		v.add("fields", "", "there are %d; at most %d are possible", len(n.Fields), MaxNotificationCount)
	}
	for k, value := range n.Fields {
		if len(k)+len(value) > MaxNotificationField {
			v.add("fields", "", "%s has %d bytes; at most %d are possible", quote(k), len(k)+len(value), MaxNotificationField)
		}
	}
	return v.err()
}

// NotificationFilter selects notifications; zero fields select all.
type NotificationFilter struct {
	Tenant   string
	Instance string
	Limit    int // the latest so many; 0: all
}

// Selects reports whether a notification is meant.
func (f NotificationFilter) Selects(n *Notification) bool {
	return (f.Tenant == "" || n.Tenant == f.Tenant) && (f.Instance == "" || n.Instance == f.Instance)
}

// AlertRule has an alert, a notification of an instance, limit the source that it names: the
// function is told the address among its sources, in all cloudlets, for a while.
type AlertRule struct {
	// From is the deployment whose instances are believed: NAME, or TENANT/NAME.
	From Ref `json:"from"`
	// Level is the lowest that counts: info, warning (default) or critical.
	Level NotificationLevel `json:"level,omitempty"`
	// Field of the notification that has the address; default src_ip.
	Field string `json:"field,omitempty"`
	// For is how long a source stays limited after its latest alert; default 10m.
	For Duration `json:"for,omitempty"`
	// Except are addresses that no alert has limited: who alerts can be deceived.
	Except []Prefix `json:"except,omitempty"`
}

// LimitedSource is a source that alerts have limited.
type LimitedSource struct {
	Address netip.Addr `json:"address"`
	Until   time.Time  `json:"until"`
	Alert   string     `json:"alert"` // title of the first one
}

// Bounds of rules about alerts.
const (
	MaxLimitedSources = 1024
	maxAlertRules     = 16
)

// sourcesValue is the value by which a function is told whom it limits.
const sourcesValue = "sources"

func checkAlerts(v *validation, at string, s *FunctionSpec, tenant string) {
	if len(s.Alerts) > maxAlertRules {
		v.add(at, "", "%d rules are too many; at most %d", len(s.Alerts), maxAlertRules)
		return
	}
	if len(s.Alerts) > 0 && s.EBPF == nil {
		v.add(at, "write ebpf: {object: ratelimit, …}", "only an ebpf function that knows %s limits a source", sourcesValue)
	}
	if tenant != OperatorTenant && len(s.Alerts) > 0 && s.Shared {
		v.add("spec.shared", "take it out", "alerts would limit other tenants' traffic")
	}
	for i := range s.Alerts {
		r, field := &s.Alerts[i], index(at, i)
		v.ref(field+".from", &r.From, "deployment", tenant)
		if owner, _ := r.From.Resolve(tenant); owner != tenant && tenant != OperatorTenant {
			v.add(field+".from", "name a deployment of your own", "%s is another tenant's", quote(string(r.From)))
		}
		enum(v, field+".level", &r.Level, LevelWarning, LevelInfo, LevelWarning, LevelCritical)
		byDefault(&r.Field, "src_ip")
		v.text(field+".field", r.Field, 64)
		byDefault(&r.For, Duration(10*time.Minute))
		quantity(v, field+".for", r.For, Duration(time.Second), day)
		r.Except = v.prefixes(field+".except", r.Except, maxPrefixes)
	}
}

// Limits is the address that a notification of a deployment, TENANT/NAME, has the function limit,
// and for how long; false: none.
func (f *Function) Limits(deployment string, n *Notification) (a netip.Addr, d time.Duration, ok bool) {
	for _, r := range f.Spec.Alerts {
		owner, name := r.From.Resolve(f.Metadata.Tenant)
		if owner+"/"+name != deployment || !n.Level.AtLeast(r.Level) {
			continue
		}
		found, err := netip.ParseAddr(strings.TrimSpace(n.Fields[r.Field]))
		found = found.Unmap()
		if err != nil || found.Zone() != "" || slices.ContainsFunc(r.Except, func(p Prefix) bool { return p.Contains(found) }) {
			continue
		}
		if d = max(d, time.Duration(r.For)); !ok {
			a, ok = found, true
		}
	}
	return a, d, ok
}

// Running is the function as instances run it: with the sources that alerts have limited.
func (f *Function) Running() FunctionSpec {
	if len(f.Spec.Alerts) == 0 || f.Spec.EBPF == nil {
		return f.Spec
	}
	list := []string{}
	if own := f.Spec.EBPF.Config[sourcesValue]; own != "" {
		list = append(list, own)
	}
	for _, s := range f.Status.Limited {
		list = append(list, s.Address.String())
	}
	return f.Spec.With(Env{sourcesValue: strings.Join(list, ",")}, nil)
}

// String is the source with its end, for logs.
func (s LimitedSource) String() string {
	return fmt.Sprintf("%s until %s, for %q", s.Address, s.Until.UTC().Format(time.RFC3339), s.Alert)
}
