package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"octet/cluster"
	"octet/model"
)

// A group that is up listens on a socket file in its run directory and speaks
// HTTP on it:
//
//	GET  /status    -> statusReport
//	POST /generate  generateRequest -> a stream of generateEvent, one JSON a line
//	POST /stop      -> 200 when every rank has ended
//
// The lock beside it belongs to the process that holds it, so it dies with it.
const (
	socketName = "octet.sock"
	lockName   = "octet.lock"
)

// statusReport is the JSON object of status.
type statusReport struct {
	Schema int            `json:"schema"`
	State  string         `json:"state"` // starting, ready, failed, stopped
	Ready  bool           `json:"ready"`
	PID    int            `json:"pid"` // of launch up
	Epoch  uint32         `json:"epoch"`
	TP     int            `json:"tp"`
	Model  string         `json:"model"`
	Flags  map[string]any `json:"flags"`
	Ranks  []rankReport   `json:"ranks"`
	Last   string         `json:"last_failure,omitempty"`
	// Members is how many members the master's gossip sees, itself included; 0
	// in a virtual group.
	Members int `json:"members"`
}

type rankReport struct {
	Rank        int     `json:"rank"`
	PID         int     `json:"pid"`
	Host        string  `json:"host"`
	State       string  `json:"state"`
	Step        uint64  `json:"step"`
	WeightBytes int64   `json:"weight_bytes"`
	DeviceUS    float64 `json:"device_us"` // virtual time of the device's bring-up
	Members     int     `json:"members"`   // that its gossip saw when it was ready
	Suspected   bool    `json:"suspected"` // gossip lost it: a hint, no verdict
}

// generateRequest asks for one prompt.
type generateRequest struct {
	IDs      []int          `json:"ids"`
	MaxNew   int            `json:"max_new_tokens"`
	Sampling model.Sampling `json:"sampling"`
}

// generateEvent is one line of the answer. The last one has Finish or Error.
type generateEvent struct {
	Token  *model.Token `json:"token,omitempty"`
	Finish string       `json:"finish,omitempty"`
	Error  string       `json:"error,omitempty"`
}

// holdRunDir makes dir and takes its lock; the file that it returns holds it.
func holdRunDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, refuse("--run-dir: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, refuse("--run-dir: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.Read(holder)
		f.Close()
		return nil, refuse("a group is up in %s already, by process %s: stop it, or give "+
			"another --run-dir", dir, holder[:n])
	}
	if err := f.Truncate(0); err != nil {
		return nil, refuse("--run-dir: %w", errors.Join(err, f.Close()))
	}
	if _, err := fmt.Fprintf(f, "%d", os.Getpid()); err != nil {
		return nil, refuse("--run-dir: %w", errors.Join(err, f.Close()))
	}
	return f, nil
}

// server answers other terminals for one group.
type server struct {
	group  *cluster.Group
	flags  map[string]any
	target *target
	next   atomic.Uint64
	asked  chan struct{} // closed by the first stop
	once   atomic.Bool
}

func newServer(g *cluster.Group, flags map[string]any, t *target) *server {
	return &server{
		group: g, flags: flags, target: t, asked: make(chan struct{}),
	}
}

// listen opens the socket file of dir. The caller holds the lock of dir, so a
// file that is there already is a dead one's.
func listen(dir string) (net.Listener, error) {
	name := filepath.Join(dir, socketName)
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, refuse("--run-dir: %w", err)
	}
	l, err := net.Listen("unix", name)
	if errors.Is(err, syscall.EINVAL) {
		return nil, refuse("--run-dir: %s has %d bytes, too many for the name of a socket: "+
			"give a shorter directory", name, len(name))
	}
	if err != nil {
		return nil, refuse("--run-dir: %w", err)
	}
	return l, nil
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", s.status)
	mux.HandleFunc("POST /generate", s.generate)
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) {
		if s.once.CompareAndSwap(false, true) {
			close(s.asked)
		}
		select {
		case <-s.group.Done():
		case <-r.Context().Done():
		}
	})
	return mux
}

func (s *server) status(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(s.report())
}

func (s *server) report() *statusReport {
	st := s.group.Status()
	report := &statusReport{
		Schema: schemaVersion, State: st.State, Ready: st.State == "ready", PID: os.Getpid(),
		Epoch: st.Epoch, TP: st.TP, Model: st.Model, Flags: s.flags, Members: st.Members,
	}
	if st.Last != nil {
		report.Last = st.Last.Error()
	}
	for _, r := range st.Ranks {
		report.Ranks = append(report.Ranks, rankReport{
			Rank: r.Rank, PID: r.PID, Host: r.Host, State: r.State, Step: r.Step,
			WeightBytes: r.Bytes, Members: r.Members, Suspected: r.Suspected,
			DeviceUS: float64(r.Device) / float64(time.Microsecond),
		})
	}
	return report
}

func (s *server) generate(w http.ResponseWriter, r *http.Request) {
	var req generateRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<20)).Decode(&req)
	if err == nil {
		err = checkPrompt(prompt{name: "of a client", ids: req.IDs}, s.target, req.MaxNew)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	begun := false
	got, err := s.answer(r.Context(), req, func(t model.Token) {
		begun = true
		out.Encode(generateEvent{Token: &t})
		flush.Flush()
	})
	switch {
	case err == nil:
		out.Encode(generateEvent{Finish: got.finish})
	case begun:
		out.Encode(generateEvent{Finish: "error", Error: err.Error()})
	default:
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	}
}

// serve answers until the group ends, somebody asks to stop, or ctx ends; the
// group has ended then. It calls ready when the group is; its error ends it, too.
func (s *server) serve(ctx context.Context, l net.Listener, ready func() error) error {
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	go web.Serve(l) // ends when web is shut down, below
	err := s.attend(ctx, ready)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	web.Shutdown(closing)
	web.Close()
	return err
}

// attend waits for the end of the group, and brings it about when it is wanted.
func (s *server) attend(ctx context.Context, ready func() error) error {
	for isReady := s.group.Ready(); ; {
		select {
		case <-isReady:
			isReady = nil
			if err := ready(); err != nil {
				return errors.Join(err, s.group.Stop(context.WithoutCancel(ctx)))
			}
		case <-s.group.Done():
			return s.group.Err()
		case <-s.asked:
			return s.group.Stop(context.WithoutCancel(ctx))
		case <-ctx.Done():
			s.group.Stop(context.WithoutCancel(ctx))
			return context.Cause(ctx)
		}
	}
}
