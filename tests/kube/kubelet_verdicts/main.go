// Admissions of pods by the kubelet's own resource managers, on machines given as JSON.
//
// Each line of the input is one node with pods, in the order of their arrival; each line of the output contains the
// admission of each pod. The predicates, the topology manager, the device manager and the CPU manager of the kubelet
// run on the machine of the case. After its admission a pod runs: its init containers have ended. The managers keep
// their state in the folder of the first argument, which becomes the root of the file system, because the path of the
// device manager is a constant.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

const (
	maxLine = 64 << 20
	// The kubelet's distribution of CPUs over NUMA nodes may run forever.
	caseTimeout = 3 * time.Second
	stateFolder = "/var/lib/kubelet"
	endedPods   = "ended" // annotation: names of the pods that end before this pod arrives, separated by commas
)

type testCase struct {
	Node node              `json:"node"`
	Pods []json.RawMessage `json:"pods"`
}

// assignment contains the resources that a container received, before init containers end.
type assignment struct {
	CPUs     string              `json:"cpus"`
	Devices  map[string][]string `json:"devices"`
	Affinity []int               `json:"affinity"`
	Memory   []block             `json:"memory"`
}

// block is memory of one kind that a container received on a group of NUMA nodes.
type block struct {
	Kind string `json:"kind"`
	NUMA []int  `json:"numa"`
	Size uint64 `json:"size"`
}

// admission is the kubelet's answer for one pod: the reason of a rejection, or the resources of each container.
type admission struct {
	Reason     string                `json:"reason"`
	Message    string                `json:"message"`
	Containers map[string]assignment `json:"containers"`
	err        error
}

type answer struct {
	Allocatable string      `json:"allocatable"` // CPUs that the CPU manager may assign
	Pods        []admission `json:"pods"`
	Timeout     bool        `json:"timeout"` // the admission of the next pod did not end
	Error       string      `json:"error"`
}

func main() {
	klog.SetLogger(logr.Discard())
	if err := setUp(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	reader := bufio.NewScanner(os.Stdin)
	reader.Buffer(make([]byte, 1<<20), maxLine)
	writer := json.NewEncoder(os.Stdout)
	for reader.Scan() {
		found := run(reader.Bytes())
		if err := writer.Encode(found); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if found.Timeout { // its goroutine cannot be stopped
			os.Exit(1)
		}
	}
}

func setUp(root string) error {
	if err := errors.Join(syscall.Chroot(root), os.Chdir("/")); err != nil {
		return err
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		"CPUManagerPolicyAlphaOptions": true, "CPUManagerPolicyBetaOptions": true,
	})
}

// run returns the admissions of one line, and those before the timeout if a pod's admission does not end.
func run(line []byte) answer {
	var found answer
	var given testCase
	if err := json.Unmarshal(line, &given); err != nil {
		return answer{Error: err.Error()}
	}
	kubelet, err := newKubelet(&given.Node)
	if err != nil {
		return answer{Error: err.Error()}
	}
	found.Allocatable = kubelet.cpus.GetAllocatableCPUs().String()
	admissions := make(chan admission)
	go func() {
		defer close(admissions)
		for _, raw := range given.Pods {
			admissions <- kubelet.admit(raw)
		}
	}()
	timeout := time.After(caseTimeout)
	for {
		select {
		case one, open := <-admissions:
			if !open {
				if err := kubelet.devices.Stop(klog.Background()); err != nil {
					found.Error = err.Error()
				}
				return found
			}
			if one.err != nil {
				found.Error = one.err.Error()
			}
			found.Pods = append(found.Pods, one)
		case <-timeout:
			found.Timeout = true
			return found
		}
	}
}

// kubelet contains the admission handlers of one node and its active pods.
type kubelet struct {
	predicates lifecycle.PodAdmitHandler
	topology   topologymanager.Manager
	cpus       cpumanager.Manager
	devices    *devicemanager.ManagerImpl
	memory     memorymanager.Manager

	mutex  sync.Mutex // the CPU manager reads the active pods in a goroutine
	active []*v1.Pod
}

// ready is the state of a kubelet that has received all its pods, and whose containers have no status yet.
type ready struct{}

func (ready) AddSource(string)                            {}
func (ready) AllReady() bool                              { return true }
func (ready) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }

// newKubelet starts the resource managers; hint providers are in the order of the kubelet's container manager.
func newKubelet(node *node) (*kubelet, error) {
	// The CPU manager of the previous case may still write its state in a goroutine, so each case has its own folder,
	// and a removal may have to be repeated.
	err := os.RemoveAll(stateFolder)
	for try := 0; err != nil && try < 100; try++ {
		time.Sleep(10 * time.Millisecond)
		err = os.RemoveAll(stateFolder)
	}
	if err := errors.Join(err, os.MkdirAll(stateFolder, 0o700)); err != nil {
		return nil, err
	}
	cpuState, err := os.MkdirTemp(stateFolder, "cpus-")
	if err != nil {
		return nil, err
	}
	ctx, logger, machine := context.Background(), klog.Background(), node.machine()
	reserved, err := cpuset.Parse(node.Kubelet.ReservedCPUs)
	if err != nil {
		return nil, err
	}
	options := &node.Kubelet
	found := &kubelet{}
	found.topology, err = topologymanager.NewManager(logger, machine.Topology, options.TopologyPolicy, options.TopologyScope,
		options.TopologyOptions)
	if err != nil {
		return nil, err
	}
	if found.devices, err = devicemanager.NewManagerImpl(logger, machine.Topology, found.topology); err != nil {
		return nil, err
	}
	found.topology.AddHintProvider(logger, found.devices)
	found.cpus, err = cpumanager.NewManager(logger, options.CPUPolicy, options.CPUOptions, 1<<62, machine, reserved,
		v1.ResourceList{v1.ResourceCPU: node.reservation()}, cpuState, found.topology)
	if err != nil {
		return nil, err
	}
	found.topology.AddHintProvider(logger, found.cpus)
	memoryPolicy := cmp.Or(options.MemoryPolicy, "None")
	limits, sums := node.memoryReservations()
	found.memory, err = memorymanager.NewManager(logger, memoryPolicy, machine, sums, limits, cpuState, found.topology)
	if err != nil {
		return nil, err
	}
	found.topology.AddHintProvider(logger, found.memory)
	err = found.devices.Start(logger, found.activePods, ready{}, containermap.NewContainerMap(), sets.New[string]())
	if err != nil {
		return nil, err
	}
	if err := addDevices(ctx, found.devices, node.Devices); err != nil {
		return nil, err
	}
	if err := found.cpus.Start(ctx, found.activePods, ready{}, ready{}, nil, containermap.NewContainerMap()); err != nil {
		return nil, err
	}
	err = found.memory.Start(ctx, found.activePods, ready{}, ready{}, nil, containermap.NewContainerMap())
	if err != nil {
		return nil, err
	}
	object := node.object(machine)
	get := func(context.Context, bool) (*v1.Node, error) { return object, nil }
	found.predicates = lifecycle.NewPredicateAdmitHandler(get, lifecycle.NewAdmissionFailureHandlerStub(),
		found.devices.UpdatePluginResources)
	return found, nil
}

func (kubelet *kubelet) activePods() []*v1.Pod {
	kubelet.mutex.Lock()
	defer kubelet.mutex.Unlock()
	return kubelet.active
}

func (kubelet *kubelet) setActive(pods []*v1.Pod) {
	kubelet.mutex.Lock()
	defer kubelet.mutex.Unlock()
	kubelet.active = pods
}

// admit runs the admission handlers for a pod; a panic of the kubelet's code is an error.
func (kubelet *kubelet) admit(raw []byte) (found admission) {
	defer func() {
		if cause := recover(); cause != nil {
			found.err = fmt.Errorf("panic: %v", cause)
		}
	}()
	pod := &v1.Pod{}
	if err := json.Unmarshal(raw, pod); err != nil {
		return admission{err: err}
	}
	corev1defaults.SetObjectDefaults_Pod(pod)
	var others []*v1.Pod
	ended := sets.New(strings.Split(pod.Annotations[endedPods], ",")...)
	for _, other := range kubelet.activePods() {
		if !ended.Has(other.Name) {
			others = append(others, other)
		}
	}
	// The kubelet lists a pod as active while it admits the pod.
	kubelet.setActive(append(slices.Clone(others), pod))
	attributes := &lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others, Operation: lifecycle.AddOperation}
	// As in the kubelet (pkg/kubelet/kubelet.go), the predicates see the devices that the pod has received.
	for _, handler := range []lifecycle.PodAdmitHandler{kubelet.topology, kubelet.predicates} {
		if result := handler.Admit(context.Background(), attributes); !result.Admit {
			kubelet.setActive(others)
			return admission{Reason: result.Reason, Message: result.Message}
		}
	}
	found.Containers = map[string]assignment{}
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		found.Containers[container.Name] = kubelet.assigned(pod, container.Name)
	}
	found.err = kubelet.start(pod)
	return found
}

// assigned returns the resources that the managers assigned to a container.
func (kubelet *kubelet) assigned(pod *v1.Pod, container string) assignment {
	uid := string(pod.UID)
	found := assignment{CPUs: kubelet.cpus.GetExclusiveCPUs(uid, container).String(), Devices: map[string][]string{}}
	for resource, devices := range kubelet.devices.GetDevices(uid, container) {
		for device := range devices {
			found.Devices[resource] = append(found.Devices[resource], device)
		}
	}
	for _, one := range kubelet.memory.GetMemory(klog.Background(), uid, container) {
		found.Memory = append(found.Memory, block{string(one.Type), one.NUMAAffinity, one.Size})
	}
	if affinity := kubelet.topology.GetAffinity(klog.Background(), uid, container).NUMANodeAffinity; affinity != nil {
		found.Affinity = affinity.GetBits()
	}
	return found
}

// start reports the start of all containers to the CPU manager, and the end of the init containers.
func (kubelet *kubelet) start(pod *v1.Pod) error {
	logger := klog.Background()
	for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		kubelet.cpus.AddContainer(logger, pod, &container, string(pod.UID)+"/"+container.Name)
		kubelet.memory.AddContainer(logger, pod, &container, string(pod.UID)+"/"+container.Name)
	}
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy == nil || *container.RestartPolicy != v1.ContainerRestartPolicyAlways {
			if err := kubelet.cpus.RemoveContainer(logger, string(pod.UID)+"/"+container.Name); err != nil {
				return err
			}
		}
	}
	return nil
}
