package model

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// gated is a model of which o_proj and down_proj both fuse on 8 ranks.
func gated() *Config {
	return &Config{ModelType: "qwen3", Heads: 16, HeadDim: 128, IntermediateSize: 2048}
}

// eager are options under which FC1 is active as soon as it can be.
func eager() Options {
	o := DefaultOptions()
	o.FlashComm1, o.MinPrefillTokens, o.MinTP = true, 1, 2
	return o
}

func TestDefaultOptionsAreTheReferences(t *testing.T) {
	// Sharding is off by default, and its limits are those of the reference.
	require.Equal(t, Options{MinPrefillTokens: 8192, MinTP: 8, CommMode: "aiv",
		Contract: "extended", MaxTokens: 10240}, DefaultOptions())
	require.NoError(t, DefaultOptions().Validate())
}

func TestGateNamesWhyFC1IsOff(t *testing.T) {
	// Each condition has its own reason; with several the most general is named.
	on := DefaultOptions()
	on.FlashComm1 = true
	for _, c := range []struct {
		name   string
		o      Options
		tp     int
		f      Facts
		reason string
	}{
		{"active at both limits", on, 8, Facts{Rows: 8192}, ""},
		{"one row short", on, 8, Facts{Rows: 8191}, ReasonRows},
		{"one rank short", on, 7, Facts{Rows: 8192}, ReasonRanks},
		{"more ranks", on, 16, Facts{Rows: 8192}, ""},
		{"a decode row", on, 8, Facts{Rows: 9000, DecodeRows: 1}, ReasonDecode},
		{"decode rows only", eager(), 8, Facts{Rows: 3, DecodeRows: 3}, ReasonDecode},
		{"no rows", eager(), 8, Facts{}, ReasonEmpty},
		{"one rank", eager(), 1, Facts{Rows: 8192}, ReasonSingle},
		{"the default", DefaultOptions(), 8, Facts{Rows: 8192}, ReasonFlag},
		{"flag before all", DefaultOptions(), 1, Facts{Rows: 1, DecodeRows: 1}, ReasonFlag},
		{"ranks before rows", on, 2, Facts{Rows: 1, DecodeRows: 1}, ReasonRanks},
		{"decode before rows", on, 8, Facts{Rows: 1, DecodeRows: 1}, ReasonDecode},
		{"one row, two ranks", eager(), 2, Facts{Rows: 1}, ""},
	} {
		d := c.o.Decide(gated(), c.tp, c.f)
		require.Equal(t, c.reason, d.Reason, c.name)
		require.Equal(t, c.reason == "", d.FC1, c.name)
		if !d.FC1 {
			require.Zero(t, d.P+d.L, c.name)
			require.Equal(t, Fuse{}, d.Fuse, c.name)
			off := FuseReason{FuseReasonInactive, FuseReasonInactive}
			require.Equal(t, off, d.FuseReason, c.name)
		}
	}
}

func TestPaddedLengthIsAMultipleOf16RowsARank(t *testing.T) {
	// P is the least multiple of 16*tp that holds T rows, and L its share.
	for _, c := range []struct{ tp, t, p, l int }{
		{8, 1, 128, 16}, {8, 16, 128, 16}, {8, 17, 128, 16}, {8, 127, 128, 16}, {8, 128, 128, 16},
		{8, 129, 256, 32}, {8, 769, 896, 112}, {8, 784, 896, 112}, {8, 785, 896, 112},
		{8, 897, 1024, 128}, {8, 1000, 1024, 128}, {8, 8192, 8192, 1024}, {8, 8193, 8320, 1040},
		{8, 12345, 12416, 1552}, {8, 32767, 32768, 4096}, {2, 1, 32, 16}, {2, 33, 64, 32},
		{3, 49, 96, 32}, {4, 64, 64, 16}, {4, 65, 128, 32},
	} {
		d := eager().Decide(gated(), c.tp, Facts{Rows: c.t})
		require.Equal(t, [2]int{c.p, c.l}, [2]int{d.P, d.L}, "T=%d tp=%d", c.t, c.tp)
	}
}

func TestGateDecidesFusionForEachProjection(t *testing.T) {
	// The width of each rank's activation, the bias of the module, the ranks and
	// the contract decide; nothing that a rank could know alone.
	fused := eager()
	fused.MMRS = true
	with := func(change func(c *Config, o *Options)) (*Config, Options) {
		c, o := gated(), fused
		change(c, &o)
		return c, o
	}
	for _, x := range []struct {
		name   string
		tp     int
		change func(c *Config, o *Options)
		o, d   string
	}{
		{"both fuse", 8, func(*Config, *Options) {}, "", ""},
		{"flag", 8, func(_ *Config, o *Options) { o.MMRS = false }, FuseReasonFlag, FuseReasonFlag},
		{"bias of o_proj", 8, func(c *Config, _ *Options) { c.AttentionBias = true },
			FuseReasonBias, ""},
		{"device contract", 8, func(_ *Config, o *Options) { o.Contract = ContractDevice },
			FuseReasonType, FuseReasonType},
		{"3 ranks", 3, func(*Config, *Options) {}, FuseReasonRanks, FuseReasonRanks},
		{"16 ranks", 16, func(*Config, *Options) {}, FuseReasonRanks, FuseReasonRanks},
		{"narrow o_proj", 8, func(c *Config, _ *Options) { c.HeadDim = 127 }, FuseReasonWidth, ""},
		{"narrow down_proj", 8, func(c *Config, _ *Options) { c.IntermediateSize = 2040 },
			"", FuseReasonWidth},
		{"widest", 2, func(c *Config, _ *Options) { c.IntermediateSize = 2 * 65534 }, "", ""},
		{"too wide", 2, func(c *Config, _ *Options) { c.IntermediateSize = 2 * 65535 },
			"", FuseReasonWidth},
	} {
		c, o := with(x.change)
		d := o.Decide(c, x.tp, Facts{Rows: 100})
		require.True(t, d.FC1, x.name)
		require.Equal(t, FuseReason{x.o, x.d}, d.FuseReason, x.name)
		require.Equal(t, Fuse{x.o == "", x.d == ""}, d.Fuse, x.name)
	}
}

func TestCommModeNoneIsTheOperatorsDefault(t *testing.T) {
	// None does not switch fusion off: it leaves the mode to the operator.
	for name, mode := range map[string]collective.CommMode{
		"aiv": collective.AIV, "ai_cpu": collective.AICPU, "none": collective.AICPU} {
		o := eager()
		o.MMRS, o.CommMode = true, name
		require.NoError(t, o.Validate())
		d := o.Decide(gated(), 8, Facts{Rows: 1})
		require.Equal(t, mode, d.Mode, name)
		require.Equal(t, Fuse{true, true}, d.Fuse, name)
	}
}

func TestValidateNamesTheWrongOption(t *testing.T) {
	// A value out of range is refused by the option's name, never replaced.
	for name, change := range map[string]func(*Options){
		nameMinPrefillTokens: func(o *Options) { o.MinPrefillTokens = 0 },
		nameMinTP:            func(o *Options) { o.MinTP = -1 },
		nameCommMode:         func(o *Options) { o.CommMode = "avi" },
		nameContract:         func(o *Options) { o.Contract = "" },
		nameChunk:            func(o *Options) { o.Chunk = -1 },
		nameMaxTokens:        func(o *Options) { o.MaxTokens = 0 },
		namePositions:        func(o *Options) { o.Positions = -1 },
	} {
		o := DefaultOptions()
		change(&o)
		require.ErrorContains(t, o.Validate(), name)
	}
}

func TestOptionsGoThroughTextUnchanged(t *testing.T) {
	// Map and Set are inverse, with underscores as with dashes.
	want := Options{FlashComm1: true, MinPrefillTokens: 3, MinTP: 5, MMRS: true, CommMode: "none",
		Contract: "device", Chunk: 7, MaxTokens: 11, Mix: true, Positions: 13}
	for _, dash := range []bool{false, true} {
		got := DefaultOptions()
		require.NotEqual(t, want.Map(), got.Map())
		for name, value := range want.Map() {
			require.NotEqual(t, value, got.Map()[name], "%s would prove nothing", name)
			if dash {
				name = strings.ReplaceAll(name, "_", "-")
			}
			require.NoError(t, got.Set(name, value))
		}
		require.Equal(t, want, got)
	}
	var o Options
	require.ErrorContains(t, o.Set("chunks", "1"), "no such option")
	require.ErrorContains(t, o.Set("chunk", "1k"), "not a whole number")
	require.ErrorContains(t, o.Set("enable_flashcomm1", "yes"), "neither true nor false")
}
