package rank

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"octet/collective"
	"octet/model"
)

func TestRunServesAndStops(t *testing.T) {
	// Ranks come to READY with their facts, run a plan and sample the golden
	// token, answer for digests, and end with nil on STOP.
	for _, size := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := startRanks(t, size, model.DefaultOptions(), nil)
				for r, phases := range m.start() {
					require.Positive(t, phases[0].Device.Total, "rank %d", r)
					require.Positive(t, phases[2].Bytes, "rank %d", r)
				}
				identity, err := Identity(m.dir, size, m.options)
				require.NoError(t, err)
				require.Equal(t, identity, m.hellos[0].Options)

				prompt := goldenPrompt(t, m.dir, 17)
				stepped := m.runStep(1, prompt)
				for r, s := range stepped {
					require.Equal(t, model.ReasonFlag, s.Decision.Reason)
					require.Equal(t, stepped[0].Counts, s.Counts, "rank %d", r)
				}

				digests := make([][]model.Digest, size)
				for r := range size {
					m.send(r, &DigestsAsk{ID: 5, Request: 1})
				}
				for r, d := range hearAll[*DigestsAnswer](m, size) {
					require.Empty(t, d.Refusal)
					require.EqualValues(t, 5, d.ID)
					digests[r] = d.Digests
				}
				sums, err := model.CombineDigests(digests)
				require.NoError(t, err)
				require.NotEmpty(t, sums)

				m.stopAll()
			})
		})
	}
}

// runStep sends a prompt as the first plan of an epoch to every rank and demands
// the golden token from rank 0, and none from the others.
func (m *fakeMaster) runStep(epoch uint32, prompt golden) []*Stepped {
	m.t.Helper()
	plan := m.plan(epoch, prompt.IDs)
	for r := range m.conns {
		m.send(r, &Step{*plan})
	}
	stepped := hearAll[*Stepped](m, len(m.conns))
	for r, s := range stepped {
		require.EqualValues(m.t, 1, s.Step)
		if r > 0 {
			require.Empty(m.t, s.Tokens, "rank %d", r)
		}
	}
	require.Len(m.t, stepped[0].Tokens, 1)
	require.Equal(m.t, prompt.Greedy[0], stepped[0].Tokens[0].ID)
	return stepped
}

// stopAll ends every rank in order.
func (m *fakeMaster) stopAll() {
	m.t.Helper()
	for r := range m.conns {
		m.send(r, &Stop{"the test is over"})
	}
	byes := 0
	for ends := 0; ends < len(m.conns); {
		s := m.hear()
		if s.err != nil {
			ends++
			continue
		}
		bye, ok := s.message.(*Bye)
		require.True(m.t, ok, "rank %d said %v", s.rank, describe(s.message))
		require.Empty(m.t, bye.Cause)
		byes++
	}
	require.Equal(m.t, len(m.conns), byes)
	for r := range m.conns {
		require.NoError(m.t, m.result(r, time.Second))
	}
}

func TestRunOverTCP(t *testing.T) {
	// With sockets between the ranks they come to READY, run a plan, leave the
	// epoch, link anew, and are gone within 3 s of the master's end, although
	// one of them waits in a collective.
	m := startRanks(t, 2, model.DefaultOptions(), func(_ int, c *Config) {
		c.Mesh, c.MeshAddr, c.Listen = nil, "", "127.0.0.1:0"
	})
	m.start()
	prompt := goldenPrompt(t, m.dir, 17)
	m.runStep(1, prompt)
	for r := range m.conns {
		m.send(r, &Abort{1, collective.Cause{Class: collective.Aborted, Informer: -1}})
	}
	hearUntil[*Apart](m, 2)
	m.assign(2)
	m.awaitReady(2)
	m.runStep(2, prompt)
	m.send(0, &Step{model.Plan{Epoch: 2, Step: 2, Rows: []model.Row{{Request: 1, Pos: 17}}}})
	m.hangUp()
	for r := range m.conns {
		require.ErrorIs(t, m.result(r, 3*time.Second), ErrMasterLost)
	}
}

func TestRunMasterLost(t *testing.T) {
	// When the control connection ends, Run returns ErrMasterLost: at once, or
	// after the grace where something runs that cannot be interrupted.
	inCollective := func(m *fakeMaster) {
		m.start()
		m.send(0, &Step{*m.plan(1, []int{1, 2, 3})}) // rank 1 is told nothing
		synctest.Wait()
	}
	for name, reach := range map[string]func(m *fakeMaster){
		"after HELLO": func(m *fakeMaster) { m.meet() },
		"after ASSIGN": func(m *fakeMaster) {
			m.meet()
			m.assign(1)
		},
		"in a load": func(m *fakeMaster) {
			m.meet()
			m.assign(1)
			for range 4 {
				m.hear() // up to linked
			}
			synctest.Wait()
		},
		"ready":           func(m *fakeMaster) { m.start() },
		"in a collective": inCollective,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stuck := make(chan struct{})
				m := startRanks(t, 2, model.DefaultOptions(), func(_ int, c *Config) {
					c.Failpoint = func(at string) error {
						if name == "in a load" && at == "rank/loaded" {
							<-stuck
						}
						return nil
					}
				})
				reach(m)
				m.hangUp()
				limit := 200 * time.Millisecond
				if name == "in a load" {
					limit = graceDefault + limit
				}
				before := time.Now()
				for r := range m.conns {
					require.ErrorIs(t, m.result(r, limit), ErrMasterLost, "rank %d", r)
				}
				require.Less(t, time.Since(before), limit)
				close(stuck) // the load that nobody waited for ends by itself
			})
		})
	}
}

func TestRunMasterSilent(t *testing.T) {
	// A master that says nothing for the dead limit is lost, also while the
	// connection stands.
	synctest.Test(t, func(t *testing.T) {
		m := startRanks(t, 2, model.DefaultOptions(), nil)
		m.start()
		m.hush()
		before := time.Now()
		for r := range m.conns {
			err := m.result(r, 8*time.Second)
			require.ErrorIs(t, err, ErrMasterLost)
			require.ErrorContains(t, err, "silent")
		}
		require.GreaterOrEqual(t, time.Since(before), 4*time.Second)
		m.hangUp()
	})
}

func TestRunPeerKilled(t *testing.T) {
	// A rank dies inside a step. Every survivor says ABORT and names it, then
	// APART, and lives on until the master lets it go.
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprintf("idle=%v", idle), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const victim = 2
				m := startRanks(t, 4, model.DefaultOptions(), nil)
				m.start()
				if !idle {
					plan := m.plan(1, goldenPrompt(t, m.dir, 17).IDs)
					for _, r := range []int{0, 1, 3} {
						m.send(r, &Step{*plan})
					}
					synctest.Wait() // they wait for the victim
				}
				m.networks[0].Kill(victim)
				before := time.Now()
				aborted, apart := map[int]bool{}, map[int]bool{}
				for len(apart) < 3 {
					s := m.hear()
					if s.rank == victim {
						continue // it learns of its own end from its Comm
					}
					require.NoError(t, s.err)
					switch message := s.message.(type) {
					case *Abort:
						require.Equal(t, collective.Death, message.Cause.Class)
						require.Equal(t, []int{victim}, message.Cause.Culprits)
						require.EqualValues(t, 1, message.Epoch)
						aborted[s.rank] = true
					case *Apart:
						require.True(t, aborted[s.rank], "rank %d: APART before ABORT", s.rank)
						apart[s.rank] = true
					default:
						require.FailNow(t, describe(s.message))
					}
				}
				require.Less(t, time.Since(before), time.Second)
				m.hangUp()
				for r := range m.conns {
					require.ErrorIs(t, m.result(r, 3*time.Second), ErrMasterLost)
				}
			})
		})
	}
}

func TestRunApartWhenAllIsClosed(t *testing.T) {
	// APART does not come while anything of the epoch still runs.
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		m := startRanks(t, 1, model.DefaultOptions(), func(_ int, c *Config) {
			c.Failpoint = func(at string) error {
				if at == "rank/step:1" {
					<-stuck
				}
				return nil
			}
		})
		m.start()
		m.send(0, &Step{*m.plan(1, []int{1, 2})})
		m.send(0, &Abort{1, collective.Cause{Class: collective.Aborted, Informer: -1}})
		synctest.Wait()
		require.Empty(t, m.heard)
		close(stuck)
		require.EqualValues(t, 1, hearAll[*Apart](m, 1)[0].Epoch)
		m.stopAll()
	})
}

func TestRunPassesCauseOn(t *testing.T) {
	// What the master gives as cause to one rank reaches the others through the
	// Comm, in the same words.
	synctest.Test(t, func(t *testing.T) {
		m := startRanks(t, 4, model.DefaultOptions(), nil)
		m.start()
		cause := collective.Cause{Class: collective.Stall, Epoch: 1, Culprits: []int{2},
			Informer: -1, Detail: errTest.Error()}
		m.send(0, &Abort{1, cause})
		for r, abort := range hearUntil[*Abort](m, 3) {
			require.NotZero(t, r)
			require.Equal(t, cause.Class, abort.Cause.Class)
			require.Equal(t, cause.Culprits, abort.Cause.Culprits)
			require.Equal(t, cause.Detail, abort.Cause.Detail)
		}
	})
}

func TestRunNextEpoch(t *testing.T) {
	// After ABORT and APART the ranks take the next epoch, with the device and
	// the weights that they have, and give the same token again.
	synctest.Test(t, func(t *testing.T) {
		var loads, devices atomic.Int32
		m := startRanks(t, 2, model.DefaultOptions(), func(_ int, c *Config) {
			c.Failpoint = func(at string) error {
				switch at {
				case "rank/loaded":
					loads.Add(1)
				case "rank/handshake":
					devices.Add(1)
				}
				return nil
			}
		})
		m.start()
		prompt := goldenPrompt(t, m.dir, 17)
		first := m.runStep(1, prompt)
		m.send(0, &Step{model.Plan{Epoch: 1, Step: 2, Rows: []model.Row{{Request: 1, Pos: 17}}}})
		synctest.Wait() // rank 0 waits for rank 1, which is told nothing
		for r := range m.conns {
			m.send(r, &Abort{1, collective.Cause{Class: collective.Aborted, Informer: -1,
				Detail: errTest.Error()}})
		}
		hearUntil[*Apart](m, 2)
		m.assign(2)
		m.awaitReady(2)
		second := m.runStep(2, prompt)
		require.Equal(t, first[0].Tokens, second[0].Tokens)
		require.EqualValues(t, 2, loads.Load())
		require.EqualValues(t, 2, devices.Load())
		m.stopAll()
	})
}

// hearUntil hears until n ranks have said M, whatever else they say.
func hearUntil[M Message](m *fakeMaster, n int) map[int]M {
	m.t.Helper()
	all := map[int]M{}
	for len(all) < n {
		s := m.hear()
		require.NoError(m.t, s.err, "rank %d", s.rank)
		if message, ok := s.message.(M); ok {
			all[s.rank] = message
		}
	}
	return all
}

func TestRunRefused(t *testing.T) {
	// A refusal is what Run returns, with both values.
	synctest.Test(t, func(t *testing.T) {
		m := startRanks(t, 1, model.DefaultOptions(), nil)
		m.meet()
		m.send(0, &Refuse{Reason: "not of this group", Key: "tp", Yours: "1", Ours: "8"})
		err := m.result(0, time.Second)
		refused := (*Refuse)(nil)
		require.ErrorAs(t, err, &refused)
		require.ErrorContains(t, err, `tp is "1" here and "8" in the group`)
	})
}

func TestRunNoModel(t *testing.T) {
	// A rank without a model says HELLO, with the reason where its fingerprints
	// should be, says why it goes, and goes.
	synctest.Test(t, func(t *testing.T) {
		m := startRanks(t, 1, model.DefaultOptions(), func(_ int, c *Config) {
			c.Model = "testdata/nowhere"
		})
		m.meet()
		require.Contains(t, m.hellos[0].Options["model.config"], "testdata/nowhere")
		require.Contains(t, hearAll[*Bye](m, 1)[0].Cause, "testdata/nowhere")
		require.ErrorContains(t, m.result(0, time.Second), "testdata/nowhere")
	})
}

func TestRunDerivesOtherwise(t *testing.T) {
	// A rank that derives another decision than the plan's makes every rank
	// abort, and each names it.
	synctest.Test(t, func(t *testing.T) {
		options := model.DefaultOptions()
		options.FlashComm1, options.MinTP, options.MinPrefillTokens = true, 2, 1
		points, err := ParseFailpoints("model/plan=error")
		require.NoError(t, err)
		m := startRanks(t, 4, options, func(r int, c *Config) {
			if r == 3 {
				c.Failpoint = points.Hit
			}
		})
		m.start()
		plan := m.plan(1, goldenPrompt(t, m.dir, 17).IDs)
		require.True(t, plan.Decision.FC1)
		for r := range m.conns {
			m.send(r, &Step{*plan})
		}
		for _, abort := range hearUntil[*Abort](m, 4) {
			require.Equal(t, collective.Mismatch, abort.Cause.Class)
			require.Equal(t, []int{3}, abort.Cause.Culprits)
			if abort.Cause.Informer == 3 {
				require.Contains(t, abort.Cause.Detail, "this rank derives fc1 off")
			}
		}
		m.hangUp()
		for r := range m.conns {
			require.ErrorIs(t, m.result(r, 3*time.Second), ErrMasterLost)
		}
	})
}

func TestRunFailpoints(t *testing.T) {
	// An error at each place of a start and in a step reaches the master as an
	// ABORT that names the rank and the place.
	for _, place := range []string{"rank/assigned", "rank/handshake", "rank/linked",
		"rank/loaded", "rank/ready", "rank/step:1", "collective/op:2"} {
		t.Run(strings.ReplaceAll(place, "/", " "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				points, err := ParseFailpoints(place + "=error")
				require.NoError(t, err)
				m := startRanks(t, 2, model.DefaultOptions(), func(r int, c *Config) {
					if r == 1 {
						c.Failpoint = points.Hit
					}
				})
				m.meet()
				m.assign(1)
				stepsSent := 0
				for {
					s := m.hear()
					if reached, ok := s.message.(*Reached); ok && reached.Phase == PhaseReady {
						stepsSent++
						if stepsSent == 2 {
							for r := range m.conns {
								m.send(r, &Step{*m.plan(1, []int{1, 2, 3})})
							}
						}
					}
					if abort, ok := s.message.(*Abort); ok && s.rank == 1 {
						require.Equal(t, []int{1}, abort.Cause.Culprits)
						require.Contains(t, abort.Cause.Detail, place)
						break
					}
				}
				m.hangUp()
				for r := range m.conns {
					require.Error(t, m.result(r, 3*time.Second))
				}
			})
		})
	}
}

func TestRunCancelled(t *testing.T) {
	// When its context ends, Run says why and returns the context's error.
	synctest.Test(t, func(t *testing.T) {
		m := startRanks(t, 2, model.DefaultOptions(), nil)
		m.start()
		m.cancel()
		for r := range m.conns {
			require.ErrorContains(t, m.result(r, 3*time.Second), "context canceled")
		}
	})
}

func TestRunIllegalMessage(t *testing.T) {
	// A master that sends what cannot be is told so, and left.
	synctest.Test(t, func(t *testing.T) {
		m := startRanks(t, 1, model.DefaultOptions(), nil)
		m.meet()
		m.send(0, &Step{model.Plan{Epoch: 4, Step: 1, Rows: make([]model.Row, 1)}})
		require.Contains(t, hearAll[*Bye](m, 1)[0].Cause, "never assigned")
		illegal := (*IllegalError)(nil)
		require.ErrorAs(t, m.result(0, time.Second), &illegal)
	})
}
